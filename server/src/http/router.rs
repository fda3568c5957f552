//! Routes, authentication, and refusals of what is not a route.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use subtle::ConstantTimeEq;

use super::{App, body, generate, info, metrics};
use crate::openai::ApiError;

/// The service of one server.
pub fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model));
    let open = Router::new()
        .route("/health", get(info::health))
        .route("/version", get(info::version))
        .route("/metrics", get(metrics::page));
    api.merge(open)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), authenticate))
        .layer(middleware::from_fn(framing))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

async fn not_found(method: Method, uri: Uri, request: Request) -> ApiError {
    let message = format!("Unknown request URL: {method} {}", uri.path());
    unread(
        &request,
        ApiError { code: Some("unknown_url"), ..ApiError::status(StatusCode::NOT_FOUND, message) },
    )
}

async fn method_not_allowed(method: Method, uri: Uri, request: Request) -> ApiError {
    let message = format!("Method {method} is not allowed for {}", uri.path());
    unread(&request, ApiError::status(StatusCode::METHOD_NOT_ALLOWED, message))
}

/// A connection with an unread body cannot be used again, and the client must be told.
fn unread(request: &Request, error: ApiError) -> ApiError {
    if body::announced(request.headers()) { error.closing() } else { error }
}

/// A body in chunks may have come with a length too, which hyper drops unseen. A proxy in front could have believed the
/// length and see the next request elsewhere, so such a connection is not used again. Other encodings are not decoded.
async fn framing(request: Request, next: Next) -> Response {
    let mut encodings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
    let (Some(encoding), more) = (encodings.next(), encodings.next()) else { return next.run(request).await };
    if more.is_some() || !encoding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        let message = "this Transfer-Encoding is not supported; send chunked, or a Content-Length";
        return ApiError::invalid(message).closing().into_response();
    }
    let mut response = next.run(request).await;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn authenticate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let keys = &app.options.api_keys;
    if keys.is_empty() || !request.uri().path().starts_with("/v1/") || is_authorized(&request, keys) {
        return next.run(request).await;
    }
    unread(&request, ApiError::unauthorized()).into_response()
}

/// Compares with every key in full, so that the time says nothing about them.
fn is_authorized(request: &Request<Body>, keys: &[String]) -> bool {
    let sent = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let bearer = sent.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    let key = if bearer { &sent[7..] } else { &[] };
    keys.iter().fold(false, |found, known| found | bool::from(known.as_bytes().ct_eq(key)))
}

async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = std::time::Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let status = response.status();
    app.metrics.response(status);
    let milliseconds = start.elapsed().as_millis();
    tracing::debug!(%method, path, status = status.as_u16(), milliseconds, "request");
    response
}
