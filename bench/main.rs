//! Benchmarks, a module per operation.
fn main() {}
