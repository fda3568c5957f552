//! Models, health, version.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::App;
use crate::openai::ApiError;

pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [model_object(&app)]}))
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    app.check_model(&id)?;
    Ok(Json(model_object(&app)))
}

fn model_object(app: &App) -> Value {
    json!({
        "id": app.model, "object": "model", "created": app.started, "owned_by": "flashlane",
        "max_model_len": app.engine.max_model_len(),
    })
}

/// 200 while requests are taken; load balancers look no further than the status.
pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    match app.check_serving() {
        Ok(()) => (StatusCode::OK, Json(json!({"status": "ok"}))).into_response(),
        Err(error) => error.into_response(),
    }
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({"name": "flashlane", "version": env!("CARGO_PKG_VERSION")}))
}
