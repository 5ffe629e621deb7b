// Connections between processes of a cluster, for what devices exchange.
//
// gRPC takes several messages, copies and threads for each tensor that travels.
// For a row of a few kilobytes, of which a step exchanges two for each
// normalization, that is more than all else. Here a row is one write and one
// read, and what is received is the tensor that an op returns.

#ifndef TF_CONVPAR_CUSTOM_OPS_KERNELS_PEERS_H_
#define TF_CONVPAR_CUSTOM_OPS_KERNELS_PEERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_convpar {

// A row between two processes, each of which knows the other as its peer.
struct RowKey {
  uint64_t step;
  uint64_t exchange;

  bool operator<(const RowKey& other) const {
    return step != other.step ? step < other.step : exchange < other.exchange;
  }
};

// Two processes have a connection for each. Statistics, which all devices wait
// for, are written at once by who sends them. Weights and their gradients have
// time: a thread writes them, and statistics pass them by.
enum class Lane : int64_t { kStatistics, kWeights };

class Connection;

class Peers {
 public:
  // Gets a row, as a tensor of bytes, or why there is none. Called once.
  using Done =
      std::function<void(const absl::Status&, const tensorflow::Tensor&)>;

  // Those of this process.
  static Peers& Get();

  // Lets peers connect at an address of this machine; false if it has no such.
  // What it gives is the same at each call: the port, and the number by which
  // peers know this process. It is random, so nobody connects who was not told.
  bool Listen(const std::string& host, int64_t* id, int* port);

  // Connects to a peer that listens. Whether there is a connection then.
  bool Connect(int64_t peer, const std::string& host, int port);

  absl::Status Send(int64_t peer, Lane lane, const RowKey& key,
                    const tensorflow::Tensor& row);

  // Gives `done` a row once it is there, by this thread if it is there already.
  void Receive(int64_t peer, Lane lane, const RowKey& key, Done done);

  // Gives a status to whoever waits for a row.
  void Cancel(int64_t peer, Lane lane, const RowKey& key,
              const absl::Status& status);

 private:
  std::shared_ptr<Connection> Find(int64_t peer, Lane lane);
  bool Connect(int64_t peer, Lane lane, const std::string& host, int port);
  void Add(int64_t peer, Lane lane, int socket);
  void Accept(int listener);

  std::mutex mutex_;
  int64_t id_ = 0;
  int port_ = 0;
  std::map<std::pair<int64_t, Lane>, std::shared_ptr<Connection>> connections_;
};

}  // namespace tf_convpar

#endif  // TF_CONVPAR_CUSTOM_OPS_KERNELS_PEERS_H_
