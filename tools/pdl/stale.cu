// Which programmatic dependents that never wait read before their producer has stored: chains and forks, eager and captured.
//
//   nvcc -std=c++17 -arch=sm_90a -o stale stale.cu && ./stale > bench/results/h200-pdl.json
//
// The producer waits, lets its dependents begin, takes its time, and then stores a number that is new in each run. The consumer
// stores what it finds there at its own beginning; a run in which that is not the new number is stale.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                            \
  do {                                                                         \
    cudaError_t error = (call);                                                \
    if (error != cudaSuccess) {                                                \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));           \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

constexpr int kRuns = 40;

struct Memory {
  unsigned long long producer_end, consumer_begin;
  int next, value, seen;
};

enum Role { kOther, kProducer, kConsumer };

struct Params {
  Memory* memory;
  int role, waits;
  long long nanoseconds;
};

__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
  unsigned long long begin = now();
  if (p.waits) asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
  volatile Memory& memory = *p.memory;
  int found = memory.value;
  for (unsigned long long start = now(); now() - start < (unsigned long long)p.nanoseconds;) __nanosleep(500);
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    if (p.role == kProducer) memory.value = memory.next;
    if (p.role == kConsumer) memory.seen = found;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (p.role == kProducer) atomicMax(&p.memory->producer_end, now());
  if (p.role == kConsumer) atomicMin(&p.memory->consumer_begin, begin);
}

struct Options {
  long long microseconds = 200;
  int blocks = 8;
  bool waits = false, programmatic = true;
};

Memory* memory;
cudaStream_t first, second;
cudaEvent_t event[4];

void launch(cudaStream_t stream, Role role, const Options& o) {
  bool consumer = role == kConsumer, producer = role == kProducer;
  Params p{memory, role, !consumer || o.waits, producer ? o.microseconds * 1000 : 0};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(producer ? o.blocks : 8), config.blockDim = dim3(256), config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute, config.numAttrs = o.programmatic;
  CHECK(cudaLaunchKernelEx(&config, kernel, p));
}

void after(cudaStream_t stream, cudaStream_t before, int which) {
  CHECK(cudaEventRecord(event[which], before));
  CHECK(cudaStreamWaitEvent(stream, event[which]));
}

using Shape = void (*)(const Options&);

void chain(const Options& o) {
  launch(first, kOther, o), launch(first, kProducer, o), launch(first, kConsumer, o), launch(first, kOther, o);
}

// The producer has another dependent on a second stream, launched before the consumer.
void fork(const Options& o) {
  launch(first, kOther, o), launch(first, kProducer, o), after(second, first, 0), launch(second, kOther, o);
  launch(first, kConsumer, o), after(first, second, 1), launch(first, kOther, o);
}

// The pair on a side stream, while the first one is busy.
void branch(const Options& o) {
  launch(first, kOther, o), after(second, first, 0), launch(second, kProducer, o), launch(second, kConsumer, o);
  launch(first, kOther, o), launch(first, kOther, o), after(first, second, 1), launch(first, kOther, o);
}

// The consumer follows the producer in its stream, and a quick kernel of the second one.
void join(const Options& o) {
  launch(first, kOther, o), after(second, first, 0), launch(second, kOther, o), launch(first, kProducer, o);
  after(first, second, 1), launch(first, kConsumer, o), launch(first, kOther, o);
}

// The consumer is the first of the second stream.
void across(const Options& o) {
  launch(first, kOther, o), launch(first, kProducer, o), after(second, first, 0), launch(second, kConsumer, o);
  after(first, second, 1), launch(first, kOther, o);
}

// The consumer follows a quick kernel in its stream, and the producer of the other one.
void join_across(const Options& o) {
  launch(first, kOther, o), after(second, first, 0), launch(second, kOther, o), launch(first, kProducer, o);
  after(second, first, 1), launch(second, kConsumer, o), after(first, second, 2), launch(first, kOther, o);
}

void run(const char* name, Shape shape, const Options& o, bool captured, bool last = false) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  if (captured) {
    CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    shape(o);
    CHECK(cudaStreamEndCapture(first, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
  }
  int stale = 0;
  std::vector<double> lead;
  for (int i = 1; i <= kRuns; ++i) {
    static int next = 0;
    Memory host{};
    CHECK(cudaMemcpy(&host, memory, sizeof host, cudaMemcpyDeviceToHost));
    host.producer_end = 0, host.consumer_begin = ~0ull, host.next = ++next;
    CHECK(cudaMemcpy(memory, &host, sizeof host, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    if (captured) {
      CHECK(cudaGraphLaunch(exec, first));
    } else {
      shape(o);
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&host, memory, sizeof host, cudaMemcpyDeviceToHost));
    stale += host.seen != next;
    lead.push_back(((double)host.producer_end - (double)host.consumer_begin) / 1000);
  }
  std::sort(lead.begin(), lead.end());
  printf("  {\"shape\": \"%s\", \"captured\": %s, \"programmatic\": %s, \"consumer_waits\": %s, \"producer_us\": %lld, ", name,
         captured ? "true" : "false", o.programmatic ? "true" : "false", o.waits ? "true" : "false", o.microseconds);
  printf("\"producer_blocks\": %d, \"stale\": %d, \"runs\": %d, \"begins_before_end_us\": %.1f}%s\n", o.blocks, stale, kRuns,
         lead[kRuns / 2], last ? "" : ",");
  if (exec) CHECK(cudaGraphExecDestroy(exec));
  if (graph) CHECK(cudaGraphDestroy(graph));
}

int main() {
  CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  for (auto& one : event) CHECK(cudaEventCreateWithFlags(&one, cudaEventDisableTiming));
  CHECK(cudaMalloc(&memory, sizeof *memory));
  CHECK(cudaMemset(memory, 0, sizeof *memory));
  cudaDeviceProp device;
  int driver;
  CHECK(cudaGetDeviceProperties(&device, 0));
  CHECK(cudaDriverGetVersion(&driver));
  printf("{\"command\": \"tools/pdl/stale.cu\", \"device\": \"%s\", \"driver\": %d, \"runs\": [\n", device.name, driver);
  struct { const char* name; Shape shape; } shapes[] = {{"chain", chain}, {"fork", fork}, {"branch", branch},
                                                         {"join", join}, {"across", across}, {"join_across", join_across}};
  for (auto& one : shapes) {
    for (bool captured : {false, true}) {
      Options full, waits;
      full.programmatic = false, waits.waits = true;
      run(one.name, one.shape, full, captured), run(one.name, one.shape, waits, captured);
      run(one.name, one.shape, Options{}, captured);
    }
  }
  for (bool captured : {false, true}) {
    for (long long microseconds : {0, 5, 20}) {
      Options o;
      o.microseconds = microseconds;
      run("chain", chain, o, captured);
    }
    for (int blocks : {132, 264, 1056, 4096}) {
      Options o;
      o.blocks = blocks;
      run("chain", chain, o, captured, captured && blocks == 4096);
    }
  }
  puts("]}");
}
