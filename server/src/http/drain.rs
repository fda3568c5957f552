//! Shutting down in order: refuse new work, let the running work end, then cut what is left.

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Phase {
    Serving,
    Draining,
    /// Time is up: streams end with an error.
    Cut,
}

#[derive(Debug)]
pub(super) struct Drain {
    phase: watch::Sender<Phase>,
    running: watch::Sender<usize>,
}

/// A generating request; the drain waits until none is left.
#[derive(Debug)]
pub(super) struct InFlight(watch::Sender<usize>);

impl Default for Drain {
    fn default() -> Self {
        Self { phase: watch::Sender::new(Phase::Serving), running: watch::Sender::new(0) }
    }
}

impl Drain {
    pub(super) fn begin(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    pub(super) fn cut(&self) {
        self.phase.send_replace(Phase::Cut);
    }

    pub(super) fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }

    /// Resolves when running requests must end now.
    pub(super) async fn cut_off(&self) {
        wait(&self.phase, |phase| *phase == Phase::Cut).await;
    }

    /// Resolves when no request runs.
    pub(super) async fn idle(&self) {
        wait(&self.running, |running| *running == 0).await;
    }

    pub(super) fn enter(&self) -> InFlight {
        self.running.send_modify(|running| *running += 1);
        InFlight(self.running.clone())
    }
}

async fn wait<T>(sender: &watch::Sender<T>, condition: impl FnMut(&T) -> bool) {
    // The sender is borrowed for the whole wait, so the channel cannot close.
    let _ = sender.subscribe().wait_for(condition).await;
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}
