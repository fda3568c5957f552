//! Property tests, a module per operation.
