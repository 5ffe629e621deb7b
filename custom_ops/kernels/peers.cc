#include "custom_ops/kernels/peers.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_convpar {
namespace {

using tensorflow::Tensor;

// How long a connection may take to begin, and a row to leave.
constexpr int kConnectMs = 2'000;
constexpr int kSendS = 30;
// On a local network, where an answer takes less than so long, no more weights
// are on their way than these. More would only stand in a queue, before
// statistics. Elsewhere more fills the link.
constexpr unsigned kLocalUs = 1'000;
constexpr int kOnTheirWayBytes = 1 << 16;
// No row is longer: a peer that says so is none.
constexpr uint64_t kLongest = uint64_t{1} << 32;
// Rows of steps that were given up are never fetched. Those of the oldest go.
constexpr std::size_t kMostUnfetchedSteps = 16;
constexpr uint64_t kHello = 0x74666376'70726f78;

struct Hello {
  uint64_t hello;
  int64_t from, to;
  Lane lane;
};

struct Header {
  uint64_t step, exchange, bytes;
};

void SetTimeout(int socket, int option, int seconds) {
  const timeval time{seconds, 0};
  setsockopt(socket, SOL_SOCKET, option, &time, sizeof time);
}

bool ReadAll(int socket, void* to, std::size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = recv(socket, at, bytes, MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= n;
  }
  return true;
}

bool WriteAll(int socket, iovec* parts, int count) {
  while (count > 0) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    for (; count > 0 && static_cast<std::size_t>(n) >= parts->iov_len;
         ++parts, --count) {
      n -= parts->iov_len;
    }
    if (count > 0) {
      parts->iov_base = static_cast<char*>(parts->iov_base) + n;
      parts->iov_len -= n;
    }
  }
  return true;
}

void GiveWay(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
      info.tcpi_rtt < kLocalUs) {
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kOnTheirWayBytes,
               sizeof kOnTheirWayBytes);
  }
}

bool Write(int socket, const Hello& hello) {
  iovec part{const_cast<Hello*>(&hello), sizeof hello};
  return WriteAll(socket, &part, 1);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses Resolve(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const std::string service = std::to_string(port);
  if (getaddrinfo(host.c_str(), service.c_str(), &hints, &found) != 0) {
    found = nullptr;
  }
  return Addresses(found, freeaddrinfo);
}

// A socket that listens at a port that the system chooses, or -1.
int ListenAt(const std::string& host, int* port) {
  const Addresses addresses = Resolve(host, 0);
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 64) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0) {
      // It is at the same place for both families.
      *port = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      return fd;
    }
    close(fd);
  }
  return -1;
}

// A connected socket, or -1.
int ConnectTo(const std::string& host, int port) {
  const Addresses addresses = Resolve(host, port);
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    bool connected = connect(fd, at->ai_addr, at->ai_addrlen) == 0;
    if (!connected && errno == EINPROGRESS) {
      pollfd wait{fd, POLLOUT, 0};
      int error = 1;
      socklen_t size = sizeof error;
      connected = poll(&wait, 1, kConnectMs) == 1 &&
                  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
                  error == 0;
    }
    fcntl(fd, F_SETFL, flags);
    if (connected) return fd;
    close(fd);
  }
  return -1;
}

absl::Status Lost() {
  return absl::UnavailableError(
      "The connection to another task is lost, by which devices exchange "
      "statistics and weights: its process has ended, or was replaced.");
}

}  // namespace

// A connection to one peer. A thread reads what comes, and where what is sent
// has time, another one writes.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(int socket, Lane lane) : socket_(socket), lane_(lane) {}
  ~Connection() { close(socket_); }

  void Start() {
    std::thread([self = shared_from_this()] { self->Read(); }).detach();
    if (lane_ == Lane::kStatistics) return;
    std::thread([self = shared_from_this()] { self->WriteQueue(); }).detach();
  }

  bool IsBroken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }

  absl::Status Send(const RowKey& key, const Tensor& row) {
    if (lane_ == Lane::kStatistics) {
      const std::lock_guard<std::mutex> lock(send_mutex_);
      return !IsBroken() && Write(key, row) ? absl::OkStatus() : Lost();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (broken_) return Lost();
    queue_.push_back({key, row});
    queued_.notify_one();
    return absl::OkStatus();
  }

  void Receive(const RowKey& key, Peers::Done done) {
    Tensor row;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto step = unfetched_.find(key.step);
      const bool there =
          step != unfetched_.end() && step->second.rows.count(key.exchange) > 0;
      if (!there && !broken_) {
        waiting_[key].push_back(std::move(done));
        return;
      }
      if (!there) {
        lock.unlock();
        return done(Lost(), {});
      }
      const auto found = step->second.rows.find(key.exchange);
      row = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) step->second.rows.erase(found);
      if (step->second.rows.empty()) unfetched_.erase(step);
    }
    done(absl::OkStatus(), row);
  }

  void Cancel(const RowKey& key, const absl::Status& status) {
    std::deque<Peers::Done> waiting;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = waiting_.find(key);
      if (found == waiting_.end()) return;
      waiting = std::move(found->second);
      waiting_.erase(found);
    }
    for (const Peers::Done& done : waiting) done(status, {});
  }

 private:
  struct Message {
    RowKey key;
    Tensor row;
  };

  // The rows of a step that came before anybody asked for them.
  struct Step {
    uint64_t number;  // in the order in which steps began to come
    std::map<uint64_t, std::deque<Tensor>> rows;
  };

  bool Write(const RowKey& key, const Tensor& row) {
    const absl::string_view bytes = row.tensor_data();
    Header header{key.step, key.exchange, bytes.size()};
    iovec parts[] = {{&header, sizeof header},
                     {const_cast<char*>(bytes.data()), bytes.size()}};
    if (WriteAll(socket_, parts, 2)) return true;
    // A part of a row may be on its way: nothing can follow.
    shutdown(socket_, SHUT_RDWR);
    return false;
  }

  void WriteQueue() {
    while (true) {
      Message next;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        queued_.wait(lock, [this] { return broken_ || !queue_.empty(); });
        if (broken_) return queue_.clear();
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!Write(next.key, next.row)) return;
    }
  }

  void Read() {
    Header header;
    while (ReadAll(socket_, &header, sizeof header) &&
           header.bytes <= kLongest) {
      Tensor row(tensorflow::DT_UINT8,
                 tensorflow::TensorShape({static_cast<int64_t>(header.bytes)}));
      if (!ReadAll(socket_, row.data(), header.bytes)) break;
      Arrived({header.step, header.exchange}, std::move(row));
    }
    std::map<RowKey, std::deque<Peers::Done>> waiting;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      broken_ = true;
      waiting.swap(waiting_);
    }
    queued_.notify_one();
    shutdown(socket_, SHUT_RDWR);
    for (const auto& each : waiting) {
      for (const Peers::Done& done : each.second) done(Lost(), {});
    }
  }

  void Arrived(const RowKey& key, Tensor row) {
    Peers::Done done;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = waiting_.find(key);
      if (found == waiting_.end()) {
        Step& step = unfetched_[key.step];
        if (step.rows.empty()) step.number = ++steps_;
        step.rows[key.exchange].push_back(std::move(row));
        if (unfetched_.size() > kMostUnfetchedSteps) DropOldestStep();
        return;
      }
      done = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) waiting_.erase(found);
    }
    done(absl::OkStatus(), row);
  }

  void DropOldestStep() {
    unfetched_.erase(std::min_element(
        unfetched_.begin(), unfetched_.end(), [](const auto& a, const auto& b) {
          return a.second.number < b.second.number;
        }));
  }

  const int socket_;
  const Lane lane_;
  std::mutex send_mutex_, mutex_;
  std::condition_variable queued_;
  bool broken_ = false;
  std::deque<Message> queue_;
  std::map<RowKey, std::deque<Peers::Done>> waiting_;
  std::map<uint64_t, Step> unfetched_;
  uint64_t steps_ = 0;
};

Peers& Peers::Get() {
  static auto* const peers = new Peers;
  return *peers;
}

bool Peers::Listen(const std::string& host, int64_t* id, int* port) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (port_ == 0) {
    const int fd = ListenAt(host, &port_);
    if (fd < 0) return false;
    std::random_device random;
    id_ = static_cast<int64_t>((uint64_t{random()} << 32 | random()) >> 2) + 1;
    std::thread([this, fd] { Accept(fd); }).detach();
  }
  *id = id_;
  *port = port_;
  return true;
}

void Peers::Accept(int listener) {
  while (true) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE) usleep(100'000);
      continue;
    }
    SetTimeout(fd, SO_RCVTIMEO, kConnectMs / 1000);
    Hello hello;
    if (!ReadAll(fd, &hello, sizeof hello) || hello.hello != kHello ||
        hello.to != id_) {
      close(fd);
      continue;
    }
    SetTimeout(fd, SO_RCVTIMEO, 0);
    Add(hello.from, hello.lane, fd);
    // Only now does the peer know of it: nobody uses it before.
    Write(fd, {kHello, id_, hello.from, hello.lane});
  }
}

bool Peers::Connect(int64_t peer, const std::string& host, int port) {
  return Connect(peer, Lane::kStatistics, host, port) &&
         Connect(peer, Lane::kWeights, host, port);
}

bool Peers::Connect(int64_t peer, Lane lane, const std::string& host,
                    int port) {
  if (Find(peer, lane) != nullptr) return true;
  const int fd = ConnectTo(host, port);
  if (fd < 0) return false;
  SetTimeout(fd, SO_RCVTIMEO, kConnectMs / 1000);
  Hello hello;
  if (!Write(fd, {kHello, id_, peer, lane}) ||
      !ReadAll(fd, &hello, sizeof hello) || hello.hello != kHello ||
      hello.from != peer) {
    close(fd);
    return false;
  }
  SetTimeout(fd, SO_RCVTIMEO, 0);
  Add(peer, lane, fd);
  return true;
}

void Peers::Add(int64_t peer, Lane lane, int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  SetTimeout(socket, SO_SNDTIMEO, kSendS);
  if (lane == Lane::kWeights) GiveWay(socket);
  auto connection = std::make_shared<Connection>(socket, lane);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    connections_[{peer, lane}] = connection;
  }
  connection->Start();
}

std::shared_ptr<Connection> Peers::Find(int64_t peer, Lane lane) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = connections_.find({peer, lane});
  if (found == connections_.end()) return nullptr;
  if (!found->second->IsBroken()) return found->second;
  connections_.erase(found);
  return nullptr;
}

absl::Status Peers::Send(int64_t peer, Lane lane, const RowKey& key,
                         const Tensor& row) {
  const auto connection = Find(peer, lane);
  return connection ? connection->Send(key, row) : Lost();
}

void Peers::Receive(int64_t peer, Lane lane, const RowKey& key, Done done) {
  const auto connection = Find(peer, lane);
  if (connection == nullptr) return done(Lost(), {});
  connection->Receive(key, std::move(done));
}

void Peers::Cancel(int64_t peer, Lane lane, const RowKey& key,
                   const absl::Status& status) {
  const auto connection = Find(peer, lane);
  if (connection != nullptr) connection->Cancel(key, status);
}

}  // namespace tf_convpar
