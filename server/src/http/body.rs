//! Reading a JSON body within limits of size and time.

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use futures::StreamExt;
use serde_json::Value;

use super::App;
use crate::openai::ApiError;

/// Reads the body of a request as JSON, whatever content type `curl` users forgot to set.
pub(super) async fn json(app: &App, request: Request<Body>) -> Result<Value, ApiError> {
    let (parts, body) = request.into_parts();
    check_headers(&parts.headers, app.options.max_body_bytes)?;
    let read = read(body, app.options.max_body_bytes);
    let bytes = tokio::time::timeout(app.options.body_timeout, read).await.map_err(|_| {
        ApiError::status(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time").closing()
    })??;
    parse(&bytes)
}

/// Whether the client announced a body.
pub(super) fn announced(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING) || content_length(headers).is_some_and(|n| n > 0)
}

fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn check_headers(headers: &HeaderMap, limit: usize) -> Result<(), ApiError> {
    let text =
        |name| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    if content_length(headers).is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    let encoding = text(header::CONTENT_ENCODING);
    if !encoding.is_empty() && encoding != "identity" {
        let message = format!("Content-Encoding {encoding} is not supported; send plain JSON");
        return Err(ApiError::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).closing());
    }
    let kind = text(header::CONTENT_TYPE);
    if let Some((_, charset)) = kind.split_once("charset=")
        && !matches!(charset.trim_matches(['"', ' ']), "utf-8" | "utf8" | "us-ascii")
    {
        let message = format!("charset {charset} is not supported; send UTF-8");
        return Err(ApiError::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).closing());
    }
    Ok(())
}

async fn read(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::invalid(format!("the request body could not be read: {error}")).closing()
        })?;
        if bytes.len() + chunk.len() > limit {
            return Err(too_large(limit));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the request body is larger than the {limit} bytes allowed");
    ApiError::status(StatusCode::PAYLOAD_TOO_LARGE, message).closing()
}

fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        ApiError::invalid(format!("the body is not valid UTF-8 at byte offset {}", error.valid_up_to()))
    })?;
    if text.trim().is_empty() {
        return Err(ApiError::invalid("the body is empty; expected a JSON object"));
    }
    serde_json::from_str(text)
        .map_err(|error| ApiError::invalid(format!("the body is not valid JSON: {error}")))
}
