//! The server over loopback: what clients send, what they must get, and what happens when they leave.

mod answers;
mod fields;
mod lifecycle;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod transport;
