//! Error objects: `{"error": {message, type, param, code}}`, and how each is answered.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flashlane::engine::EngineError;
use serde_json::{Value, json};

/// A rejection, complete with what the client should do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    pub kind: &'static str,
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub retry_after: Option<u32>,
    /// The rest of the request was not read, so the connection cannot be used again.
    pub close: bool,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl ApiError {
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            kind,
            param: None,
            code: None,
            retry_after: None,
            close: false,
            headers: Vec::new(),
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field with a value that it cannot have.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), code: Some("invalid_value"), ..Self::invalid(message) }
    }

    /// A field that means something, which this server does not do.
    pub fn unsupported(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("'{param}' is not supported by this server; leave it out");
        Self { param: Some(param), code: Some("unsupported_parameter"), ..Self::invalid(message) }
    }

    pub fn status(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    pub fn model_not_found(model: &str) -> Self {
        Self {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..Self::status(StatusCode::NOT_FOUND, format!("The model '{model}' does not exist"))
        }
    }

    pub fn context_length(limit: usize, prompt: usize, completion: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, you requested {} tokens ({prompt} in the \
             messages, {completion} in the completion). Please reduce the length of the messages or completion.",
            prompt + completion
        );
        Self {
            param: Some("messages".into()),
            code: Some("context_length_exceeded"),
            ..Self::invalid(message)
        }
    }

    pub fn unauthorized() -> Self {
        Self {
            kind: "authentication_error",
            code: Some("invalid_api_key"),
            headers: vec![(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))],
            ..Self::status(
                StatusCode::UNAUTHORIZED,
                "Incorrect or missing API key; send 'Authorization: Bearer KEY'",
            )
        }
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(5),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message)
        }
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// A fault that the same request meets again: clients must not send it three times.
    fn deterministic(message: String) -> Self {
        let no_retry = (HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        Self { headers: vec![no_retry], ..Self::internal(message) }
    }

    pub fn closing(self) -> Self {
        Self { close: true, ..self }
    }

    pub fn to_json(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        }})
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::QueueFull { .. } => Self {
                retry_after: Some(1),
                code: Some("queue_full"),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            },
            EngineError::ContextLength { prompt, max_tokens, limit } => {
                Self::context_length(limit, prompt, max_tokens)
            }
            EngineError::Invalid { field, message } => Self::field(field, message),
            EngineError::OutOfPages { .. } => {
                Self { code: Some("context_length_exceeded"), ..Self::invalid(message) }
            }
            EngineError::Draining | EngineError::Dead(_) => Self::unavailable(message),
            EngineError::NonFinite { .. } => {
                Self { code: Some("non_finite_logits"), ..Self::deterministic(message) }
            }
            EngineError::Internal(_) => Self::internal(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut headers: HeaderMap = self.headers.iter().cloned().collect();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        (self.status, headers, self.to_json().to_string()).into_response()
    }
}
