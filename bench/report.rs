//! What was found on a GPU, as JSON: criterion's estimates, with what the benchmark counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::bench::Bench;

/// Names the file to write, the commit that was built where no `git` tells it, and the run, to find records of the same one by.
const FILE: &str = "FLASHLANE_BENCH_JSON";
const COMMIT: &str = "FLASHLANE_BENCH_COMMIT";
const RUN: &str = "FLASHLANE_BENCH_RUN";

pub(crate) struct Report {
    started: SystemTime,
    directory: PathBuf,
    /// By benchmark, and bytes.
    ceilings: Vec<(String, usize)>,
    /// By benchmark, without its figures.
    cases: Vec<(String, Value)>,
}

impl Report {
    pub(crate) fn new() -> Self {
        let directory = std::env::var_os("CRITERION_HOME").map_or("target/criterion".into(), PathBuf::from);
        Self { started: SystemTime::now(), directory, ceilings: Vec::new(), cases: Vec::new() }
    }

    /// Where criterion keeps its estimates.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn ceiling(&mut self, id: &str, bytes: usize) {
        self.ceilings.push((id.into(), bytes));
    }

    pub(crate) fn case(&mut self, bench: &Bench, launches: usize) {
        let Bench { kernel, shape, bytes, flops, .. } = bench;
        let case =
            json!({ "kernel": kernel, "shape": shape, "bytes": bytes, "flops": flops, "launches": launches });
        self.cases.push((format!("{kernel}/{shape}"), case));
    }

    /// Writes the file that the environment names, if it names one.
    pub(crate) fn write(&self) {
        let Some(file) = std::env::var_os(FILE) else { return };
        let mut found = BTreeMap::new();
        self.collect(&self.directory, &mut found);
        let rate = |(id, bytes): &(String, usize)| {
            let micros = found.get(id)?["us"].as_f64()?;
            Some((id.rsplit('/').next()?.to_owned(), json!(*bytes as f64 / micros * 1e6)))
        };
        let ceilings: serde_json::Map<String, Value> = self.ceilings.iter().filter_map(rate).collect();
        let cases = self.cases.iter().map(|(id, case)| {
            let mut case = case.clone();
            for figure in ["cold", "warm", "chain"] {
                if let Some(estimate) = found.get(&format!("{id}/{figure}")) {
                    case[figure] = estimate.clone();
                }
            }
            case
        });
        let report = json!({
            "gpu": flashlane::cuda::Gpu::open(0).and_then(|gpu| gpu.device_name()).ok(),
            "driver": output("nvidia-smi", &["--id=0", "--query-gpu=driver_version", "--format=csv,noheader"]),
            "commit": std::env::var(COMMIT).ok().or_else(|| output("git", &["rev-parse", "--short", "HEAD"])),
            "date": output("date", &["-u", "+%F"]),
            "run": std::env::var(RUN).ok(),
            "bytes_per_second": ceilings,
            "cases": cases.collect::<Vec<_>>(),
        });
        let text = serde_json::to_string_pretty(&report).expect("a report");
        std::fs::write(&file, text + "\n").unwrap_or_else(|e| panic!("{FILE}={}: {e}", file.display()));
    }

    /// The medians of this run below a directory, in microseconds with their intervals, by benchmark.
    fn collect(&self, directory: &Path, found: &mut BTreeMap<String, Value>) {
        if let Some((id, estimate)) = self.estimate(&directory.join("new")) {
            found.insert(id, estimate);
        }
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                self.collect(&entry.path(), found);
            }
        }
    }

    fn estimate(&self, directory: &Path) -> Option<(String, Value)> {
        let file = directory.join("estimates.json");
        if std::fs::metadata(&file).ok()?.modified().ok()? < self.started {
            return None;
        }
        let read = |path| serde_json::from_slice::<Value>(&std::fs::read(path).ok()?).ok();
        let (benchmark, estimates) = (read(directory.join("benchmark.json"))?, read(file)?);
        let median = &estimates["median"];
        let micros = |v: &Value| v.as_f64().map(|ns| (ns / 10.0).round() / 100.0);
        let interval = &median["confidence_interval"];
        let estimate = json!({
            "us": micros(&median["point_estimate"])?,
            "low": micros(&interval["lower_bound"])?,
            "high": micros(&interval["upper_bound"])?,
        });
        Some((benchmark["full_id"].as_str()?.to_owned(), estimate))
    }
}

/// The line that a program prints, if it runs.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}
