//! A server on a loopback port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flashlane_server::http::{App, Defaults, ServerOptions, serve};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Client, Reply, Scripted, post, tokenizer};

#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    pub engine: Arc<Scripted>,
    pub task: JoinHandle<std::io::Result<()>>,
    shutdown: Option<oneshot::Sender<()>>,
}

impl Server {
    pub async fn start(engine: Scripted) -> Self {
        Self::with(engine, ServerOptions::default()).await
    }

    pub async fn with(engine: Scripted, options: ServerOptions) -> Self {
        let engine = Arc::new(engine);
        let defaults = Defaults::default();
        let app = App::new(engine.clone(), Arc::new(tokenizer()), "tiny".into(), defaults, options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stopped) = oneshot::channel::<()>();
        let stopped = async move {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let task = tokio::spawn(serve(listener, Arc::new(app), stopped));
        Self { address, engine, task, shutdown: Some(shutdown) }
    }

    pub async fn connect(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Sends one request on its own connection and reads the response.
    pub async fn exchange(&self, request: impl AsRef<[u8]>) -> Reply {
        let mut client = self.connect().await;
        client.send(request).await;
        tokio::time::timeout(Duration::from_secs(10), client.reply()).await.expect("an answer within 10 s")
    }

    pub async fn chat(&self, body: impl AsRef<str>) -> Reply {
        self.exchange(post("/v1/chat/completions", body)).await
    }

    pub fn shut_down(&mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
    }
}
