//! The byte stream of a connection, with two corrections: a client that stops reading is given up after a while, and the
//! bare refusals that hyper writes by itself (a request it cannot parse) get an error object as their body.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::openai::ApiError;

#[derive(Debug)]
pub(super) struct Guarded<T> {
    inner: T,
    timeout: Duration,
    /// Runs while the peer takes nothing.
    stall: Option<Pin<Box<Sleep>>>,
    /// What replaces hyper's refusal, and how much of it is written.
    page: Option<(Vec<u8>, usize)>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Guarded<T> {
    pub(super) fn new(inner: T, timeout: Duration) -> Self {
        Self { inner, timeout, stall: None, page: None }
    }

    /// Passes a write result on, unless it has been pending for too long.
    fn watch<R>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if result.is_ready() {
            self.stall = None;
            return result;
        }
        let timeout = self.timeout;
        let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(stall.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client has stopped reading")))
    }

    fn write_page(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((page, written)) = &mut self.page {
            if *written == page.len() {
                self.page = None;
                break;
            }
            let result = Pin::new(&mut self.inner).poll_write(cx, &page[*written..]);
            if let Poll::Ready(Ok(n)) = result {
                *written += n;
            }
            ready!(self.watch(cx, result))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.page.is_none() {
            self.page = refusal(buf).map(|page| (page, 0));
        }
        if self.page.is_some() {
            ready!(self.write_page(cx))?;
            return Poll::Ready(Ok(buf.len()));
        }
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Guarded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

/// hyper's refusal has a 4xx status and no body; every error of this server has one.
fn refusal(head: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(head).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ").or_else(|| head.strip_prefix("HTTP/1.0 "))?.get(..3)?;
    if !status.starts_with('4') || !head.contains("content-length: 0\r\n") {
        return None;
    }
    let (line, message) = match status {
        "431" => ("431 Request Header Fields Too Large", "the request headers are too large or too many"),
        "414" => ("414 URI Too Long", "the request URI is too long"),
        _ => ("400 Bad Request", "this is not a valid HTTP/1.1 request"),
    };
    let body = ApiError::invalid(message).to_json().to_string();
    let length = body.len();
    Some(
        format!(
            "HTTP/1.1 {line}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
        .into_bytes(),
    )
}
