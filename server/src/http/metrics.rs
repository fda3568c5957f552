//! Counters in the Prometheus text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use super::App;
use crate::dsml::Counters;

/// What the engine cannot count.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By class: 1xx to 5xx.
    responses: [AtomicU64; 5],
    parser: Mutex<Counters>,
}

impl Metrics {
    pub(super) fn response(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, 5);
        self.responses[class - 1].fetch_add(1, Relaxed);
    }

    pub(super) fn parsed(&self, counters: Counters) {
        *self.parser.lock().unwrap_or_else(PoisonError::into_inner) += counters;
    }
}

pub(super) async fn page(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text(&app))
}

fn text(app: &App) -> String {
    let stats = app.engine.stats();
    let mut out = String::new();
    for (name, help, value) in [
        ("requests_running", "Requests in the batch.", stats.running),
        ("requests_waiting", "Requests in the queue.", stats.waiting),
        ("cache_blocks_free", "Free pages of 256 tokens.", stats.free_blocks),
        ("cache_blocks", "All pages of 256 tokens.", stats.total_blocks),
        ("cache_windows_free", "Free pages of 64 window rows.", stats.free_windows),
        ("cache_windows", "All pages of 64 window rows.", stats.total_windows),
        ("slots_free", "Free sequence slots.", stats.free_slots),
        ("slots", "All sequence slots.", stats.total_slots),
    ] {
        metric(&mut out, name, help, "gauge", &[("", value as u64)]);
    }
    let ends = [
        ("{end=\"finished\"}", stats.finished),
        ("{end=\"aborted\"}", stats.aborted),
        ("{end=\"failed\"}", stats.failed),
    ];
    metric(&mut out, "requests_accepted_total", "Requests queued.", "counter", &[("", stats.accepted)]);
    metric(&mut out, "requests_rejected_total", "Requests refused.", "counter", &[("", stats.rejected)]);
    metric(&mut out, "requests_ended_total", "Requests by how they ended.", "counter", &ends);
    metric(&mut out, "prompt_tokens_total", "Tokens read.", "counter", &[("", stats.prompt_tokens)]);
    metric(&mut out, "generated_tokens_total", "Tokens written.", "counter", &[("", stats.generated_tokens)]);
    metric(&mut out, "steps_total", "Steps of the model.", "counter", &[("", stats.steps)]);
    let blocks = [("", stats.prefill_blocks)];
    metric(&mut out, "prefill_blocks_total", "Steps that were a block of a prompt.", "counter", &blocks);
    let waited = "Most blocks of prompts that a decode step has waited for; at most 1.";
    metric(
        &mut out,
        "prefill_blocks_between_decodes",
        waited,
        "gauge",
        &[("", stats.blocks_between_decodes)],
    );
    let discarded = "Rows computed for requests that had ended meanwhile; at most one a request.";
    metric(&mut out, "rows_discarded_total", discarded, "counter", &[("", stats.discarded_rows)]);
    let classes: Vec<(String, u64)> = (1..)
        .zip(&app.metrics.responses)
        .map(|(class, count)| (format!("{{class=\"{class}xx\"}}"), count.load(Relaxed)))
        .collect();
    let classes: Vec<(&str, u64)> = classes.iter().map(|(label, n)| (label.as_str(), *n)).collect();
    metric(&mut out, "http_responses_total", "Responses by status class.", "counter", &classes);
    instruments(app, &mut out);
    for (name, count) in app.metrics.parser.lock().unwrap_or_else(PoisonError::into_inner).named() {
        metric(
            &mut out,
            &format!("parser_{name}_total"),
            "See the tool-call parser.",
            "counter",
            &[("", count)],
        );
    }
    out
}

/// Those of the instruments that are on.
fn instruments(app: &App, out: &mut String) {
    let Some(report) = app.engine.instruments() else { return };
    let mut counter = |name: &str, help: &str, value: u64| metric(out, name, help, "counter", &[("", value)]);
    if let Some(canary) = report.canary {
        counter("canary_hits_total", "Cache rows that changed after they were stored.", canary.hits);
        counter("canary_pages_checked_total", "Full pages that were hashed again.", canary.pages);
        counter("canary_bytes_total", "Bytes that were hashed again.", canary.bytes);
    }
    if let Some(diff) = report.differential {
        counter("diff_steps_total", "Steps that were run again.", diff.sampled);
        counter("diff_differing_total", "Of those, steps whose second run differed.", diff.differing);
        counter("diff_topk_dis_total", "Rows that only one of two runs selected.", diff.topk_dis);
        counter("diff_argmax_dis_total", "Rows of logits with another best token.", diff.argmax_dis);
    }
    if let Some(inject) = report.inject {
        counter("injected_faults_total", "Faults that were put in on purpose.", inject.injected);
    }
}

fn metric(out: &mut String, name: &str, help: &str, kind: &str, values: &[(&str, u64)]) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP flashlane_{name} {help}\n# TYPE flashlane_{name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(out, "flashlane_{name}{labels} {value}");
    }
}
