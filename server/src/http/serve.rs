//! Accepting connections, and shutting down.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::connection::Guarded;
use super::{App, router};
use crate::openai::ApiError;

const MAX_HEADER_BYTES: usize = 64 << 10;
/// For responses that are still being written when all work is done.
const LINGER: Duration = Duration::from_secs(2);
/// After a failed accept, usually for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` resolves and running requests have ended or timed out.
///
/// While draining, new connections are still accepted, so that health checks read 503 instead of a refused connection.
///
/// # Errors
/// The listener's address is unknown.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    tracing::info!(address = %listener.local_addr()?, model = app.model, "listening");
    let connections = Connections::new(&app);
    tokio::select! {
        () = connections.accept(&listener) => {}
        () = shutdown => {}
    }
    tracing::info!(timeout = ?app.options.drain_timeout, "draining");
    app.drain.begin();
    app.engine.drain();
    tokio::select! {
        () = connections.accept(&listener) => {}
        () = app.drain.idle() => {}
        () = tokio::time::sleep(app.options.drain_timeout) => tracing::warn!("drain timeout: cutting the rest"),
    }
    drop(listener);
    app.drain.cut();
    connections.close().await;
    Ok(())
}

struct Connections {
    router: Router,
    app: Arc<App>,
    slots: Arc<Semaphore>,
    stop: watch::Sender<bool>,
}

impl Connections {
    fn new(app: &Arc<App>) -> Self {
        let slots = Arc::new(Semaphore::new(app.options.max_connections));
        Self { router: router(Arc::clone(app)), app: Arc::clone(app), slots, stop: watch::Sender::new(false) }
    }

    /// Runs for ever.
    async fn accept(&self, listener: &TcpListener) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => self.spawn(stream, slot),
                Err(_) => refuse(&stream, self.app.options.max_connections),
            }
        }
    }

    fn spawn(&self, stream: TcpStream, slot: OwnedSemaphorePermit) {
        // Small stream chunks must not wait for each other.
        let _ = stream.set_nodelay(true);
        let options = &self.app.options;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(options.header_timeout)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(
                TokioIo::new(Guarded::new(stream, options.write_timeout)),
                TowerToHyperService::new(self.router.clone()),
            );
        let mut stop = self.stop.subscribe();
        let stopped = async move {
            let _ = stop.wait_for(|stop| *stop).await;
        };
        tokio::spawn(async move {
            let _slot = slot;
            let mut connection = std::pin::pin!(connection);
            let result = tokio::select! {
                result = connection.as_mut() => result,
                () = stopped => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = result {
                tracing::debug!(%error, "connection ended");
            }
        });
    }

    /// Lets responses that are being written end.
    async fn close(&self) {
        self.stop.send_replace(true);
        let all = u32::try_from(self.app.options.max_connections).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(LINGER, self.slots.acquire_many(all)).await;
    }
}

/// Says why, as far as the socket takes it at once, and closes.
fn refuse(stream: &TcpStream, limit: usize) {
    let body = ApiError::unavailable(format!("all {limit} connections are in use")).to_json().to_string();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.try_write(response.as_bytes());
}
