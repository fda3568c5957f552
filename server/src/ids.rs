//! Identifiers of responses and tool calls: unique, not secret.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no other call returns in this process, unlike those of other processes.
pub(crate) fn random() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    thread_local!(static KEY: RandomState = RandomState::new());
    KEY.with(|key| key.hash_one(COUNTER.fetch_add(1, Ordering::Relaxed)))
}

/// `prefix-` and 32 hexadecimal digits.
pub(crate) fn response(prefix: &str) -> String {
    format!("{prefix}-{:016x}{:016x}", random(), random())
}

pub(crate) fn call() -> String {
    format!("call_{:016x}{:08x}", random(), random() >> 32)
}
