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

#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tf_convpar {
namespace {

// How long a connection may take to begin, and a row to leave.
constexpr int kConnectMs = 2'000;
constexpr int kSendS = 30;
// No row is longer: a peer that says so is none.
constexpr uint64_t kLongest = uint64_t{1} << 28;
// Rows of steps that were given up are never fetched. The oldest go.
constexpr std::size_t kMostUnfetched = 4096;
constexpr uint64_t kHello = 0x74666376'70726f77;

struct Hello {
  uint64_t hello;
  int64_t from, to;
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
      "The connection to another task is lost, by which normalizations "
      "exchange statistics: its process has ended, or was replaced.");
}

}  // namespace

// The connection to one peer. A thread reads what comes.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(int socket) : socket_(socket) {}
  ~Connection() { close(socket_); }

  void Start() {
    std::thread([self = shared_from_this()] { self->Read(); }).detach();
  }

  bool IsBroken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }

  absl::Status Send(const RowKey& key, absl::string_view row) {
    Header header{key.step, key.exchange, row.size()};
    iovec parts[] = {{&header, sizeof header},
                     {const_cast<char*>(row.data()), row.size()}};
    const std::lock_guard<std::mutex> lock(send_mutex_);
    if (!IsBroken() && WriteAll(socket_, parts, 2)) return absl::OkStatus();
    // A part of a row may be on its way: nothing can follow.
    shutdown(socket_, SHUT_RDWR);
    return Lost();
  }

  void Receive(const RowKey& key, Peers::Done done) {
    std::string row;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto found = unfetched_.find(key);
      if (found == unfetched_.end() && !broken_) {
        waiting_[key].push_back(std::move(done));
        return;
      }
      if (found == unfetched_.end()) {
        lock.unlock();
        return done(Lost(), "");
      }
      row = std::move(found->second.front().bytes);
      found->second.pop_front();
      if (found->second.empty()) unfetched_.erase(found);
      --count_;
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
    for (const Peers::Done& done : waiting) done(status, "");
  }

 private:
  void Read() {
    Header header;
    while (ReadAll(socket_, &header, sizeof header) &&
           header.bytes <= kLongest) {
      std::string row(header.bytes, '\0');
      if (!ReadAll(socket_, row.data(), row.size())) break;
      Arrived({header.step, header.exchange}, std::move(row));
    }
    std::map<RowKey, std::deque<Peers::Done>> waiting;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      broken_ = true;
      waiting.swap(waiting_);
    }
    shutdown(socket_, SHUT_RDWR);
    for (const auto& each : waiting) {
      for (const Peers::Done& done : each.second) done(Lost(), "");
    }
  }

  void Arrived(const RowKey& key, std::string row) {
    Peers::Done done;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = waiting_.find(key);
      if (found == waiting_.end()) {
        unfetched_[key].push_back({++number_, std::move(row)});
        if (++count_ > kMostUnfetched) DropOldest();
        return;
      }
      done = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) waiting_.erase(found);
    }
    done(absl::OkStatus(), row);
  }

  void DropOldest() {
    auto oldest = unfetched_.begin();
    for (auto each = oldest; each != unfetched_.end(); ++each) {
      if (each->second.front().number < oldest->second.front().number) {
        oldest = each;
      }
    }
    oldest->second.pop_front();
    if (oldest->second.empty()) unfetched_.erase(oldest);
    --count_;
  }

  struct Row {
    uint64_t number;  // in the order in which they came
    std::string bytes;
  };

  const int socket_;
  std::mutex send_mutex_, mutex_;
  bool broken_ = false;
  std::map<RowKey, std::deque<Peers::Done>> waiting_;
  std::map<RowKey, std::deque<Row>> unfetched_;
  std::size_t count_ = 0;  // of rows in it
  uint64_t number_ = 0;
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
    Add(hello.from, fd);
    // Only now does the peer know of it: nobody uses it before.
    Write(fd, {kHello, id_, hello.from});
  }
}

bool Peers::Connect(int64_t peer, const std::string& host, int port) {
  if (Find(peer) != nullptr) return true;
  const int fd = ConnectTo(host, port);
  if (fd < 0) return false;
  SetTimeout(fd, SO_RCVTIMEO, kConnectMs / 1000);
  Hello hello;
  if (!Write(fd, {kHello, id_, peer}) || !ReadAll(fd, &hello, sizeof hello) ||
      hello.hello != kHello || hello.from != peer) {
    close(fd);
    return false;
  }
  SetTimeout(fd, SO_RCVTIMEO, 0);
  Add(peer, fd);
  return true;
}

void Peers::Add(int64_t peer, int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  SetTimeout(socket, SO_SNDTIMEO, kSendS);
  auto connection = std::make_shared<Connection>(socket);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    connections_[peer] = connection;
  }
  connection->Start();
}

std::shared_ptr<Connection> Peers::Find(int64_t peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return nullptr;
  if (!found->second->IsBroken()) return found->second;
  connections_.erase(found);
  return nullptr;
}

absl::Status Peers::Send(int64_t peer, const RowKey& key,
                         absl::string_view row) {
  const auto connection = Find(peer);
  return connection ? connection->Send(key, row) : Lost();
}

void Peers::Receive(int64_t peer, const RowKey& key, Done done) {
  const auto connection = Find(peer);
  if (connection == nullptr) return done(Lost(), "");
  connection->Receive(key, std::move(done));
}

void Peers::Cancel(int64_t peer, const RowKey& key,
                   const absl::Status& status) {
  const auto connection = Find(peer);
  if (connection != nullptr) connection->Cancel(key, status);
}

}  // namespace tf_convpar
