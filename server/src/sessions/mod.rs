//! Sessions of the built-in model's tasks against a model: what is asked, what is answered, and what was wrong with it.
//!
//! A session is one item of [`crate::tasks`]: its requests are those of any client of the chat route, the model's own answers
//! are the history of the next, and results of tools come from the item. The same session runs in process or over HTTP. The
//! stress harness counts what goes wrong in sessions; the evaluation counts the ones that are right.

mod answer;
mod judge;
mod local;
mod play;
mod remote;
mod script;

pub use answer::{Answer, Called};
pub use judge::{Class, Faults, Judged, judge};
pub use local::Local;
pub use play::{Limits, Model, Session, number, play, play_all};
pub use remote::{BadUrl, Remote};
pub use script::{Expected, Place, Script};
