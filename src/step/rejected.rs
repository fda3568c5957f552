//! Programs that do not compile, each beside a twin that does: what the types of lanes and handles guarantee.
//!
//! The examples share this prelude: numerics `n()`, a weight `w()` of 512 x 512, a norm, a pool and a state.
//!
//! # One tail written twice
//! A store consumes the [`Tail`](super::Tail) of its pool, so a second writer has nothing to write to.
//! ```
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, slot, pool) = open(root);
//!     lane.rope_store(&x, &norm(), &rope(), &slot, pool.tail);
//! }).unwrap();
//! ```
//! ```compile_fail,E0382
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, slot, pool) = open(root);
//!     lane.rope_store(&x, &norm(), &rope(), &slot, pool.tail);
//!     lane.rope_store(&x, &norm(), &rope(), &slot, pool.tail);
//! }).unwrap();
//! ```
//! Nor can two branches share it:
//! ```compile_fail,E0382
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, slot, pool) = open(root);
//!     lane.fork()
//!         .branch("a", |a| a.rope_store(&x, &norm(), &rope(), &slot, pool.tail))
//!         .branch("b", |b| b.rope_store(&x, &norm(), &rope(), &slot, pool.tail))
//!         .join();
//! }).unwrap();
//! ```
//!
//! # A read beside a sibling's write
//! Rows exist only once their store has returned them, so a sibling has nothing to read; it can only be sent them.
//! ```
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, slot, pool) = open(root);
//!     let (tx, rx) = lane.channel();
//!     lane.fork()
//!         .branch("store", |a| {
//!             let rows = a.rope_store(&x, &norm(), &rope(), &slot, pool.tail);
//!             a.send(tx, &rows);
//!         })
//!         .branch("read", |b| {
//!             let rows = b.recv(rx);
//!             b.attention(&x, (pool.settled, &rows), Compact::None, &sink(), &rope())
//!         })
//!         .join();
//! }).unwrap();
//! ```
//! ```compile_fail,E0308
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, slot, pool) = open(root);
//!     lane.attention(&x, (pool.settled, &pool.tail), Compact::None, &sink(), &rope());
//! }).unwrap();
//! ```
//!
//! # A value that leaves its branch without an edge
//! Branches return values; they cannot hand them out through a variable of their parent.
//! ```
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, ..) = open(root);
//!     let (y,) = lane.fork().branch("a", |a| a.linear(&x, &w())).join();
//!     let _ = lane.linear(&y, &w());
//! }).unwrap();
//! ```
//! ```compile_fail,E0277
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, ..) = open(root);
//!     let mut out = None;
//!     lane.fork().branch("a", |a| out = Some(a.linear(&x, &w()))).join();
//! }).unwrap();
//! ```
//!
//! # A lane outside its branch
//! Lanes are lent: a branch cannot keep its lane, or use its parent's.
//! ```compile_fail,E0277
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, ..) = open(root);
//!     lane.fork_join(("a", |_: &mut Lane<'_>| lane.linear(&x, &w())), ("b", |_: &mut Lane<'_>| ()));
//! }).unwrap();
//! ```
//! ```compile_fail
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, _| {
//!     let (kept, ()) = lane.fork_join(("a", |a: &mut Lane<'_>| a), ("b", |_: &mut Lane<'_>| ()));
//! }).unwrap();
//! ```
//! Nor swap it for another:
//! ```compile_fail
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, _| {
//!     lane.fork().branch("a", |a| std::mem::swap(a, lane)).join();
//! }).unwrap();
//! ```
//!
//! # A handle of another step
//! ```compile_fail,E0521
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |_, outer| {
//!     let (x, ..) = open(outer);
//!     build(n(), |lane, _| { lane.linear(&x, &w()); }).unwrap();
//! }).unwrap();
//! ```
//!
//! # A value kept after its step
//! ```
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! let (_graph, place) = build(n(), |_, root| open(root).0.value()).unwrap();
//! # let _ = place;
//! ```
//! ```compile_fail
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! let (_graph, x) = build(n(), |_, root| open(root).0).unwrap();
//! ```
//!
//! # A channel used twice
//! ```compile_fail,E0382
//! # mod prelude { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/step/examples/prelude.rs")); } use prelude::*;
//! build(n(), |lane, root| {
//!     let (x, ..) = open(root);
//!     let (tx, rx) = lane.channel();
//!     lane.send(tx, &x);
//!     let _a = lane.recv(rx);
//!     let _b = lane.recv(rx);
//! }).unwrap();
//! ```
