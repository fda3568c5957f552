//! The server over loopback: what clients send, what they must get, and what happens when they leave.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may panic.

mod answers;
mod fields;
mod lifecycle;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod transport;
