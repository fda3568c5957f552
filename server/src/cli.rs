//! The command line. The flags of the model and the server have `FLASHLANE_*` twins in the environment; the flag wins.

mod help;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use flashlane::engine::DecodeBuckets;
use flashlane::instrument::{Fault, Instruments};

use self::help::{CANARY_HELP, DIFF_HELP, INSPECT_HELP, QUANTIZE_HELP, SERVE_HELP, inject_help};
use crate::eval::EvalArgs;
use crate::http::ServerOptions;
use crate::matrix::MatrixArgs;
use crate::stress::StressArgs;
use crate::tasks::TasksArgs;
use crate::verify::VerifyArgs;

#[derive(Debug, Parser)]
#[command(
    name = "flashlane",
    version,
    about = "DeepSeek-V4-Flash on a step graph that is proved free of hazards"
)]
#[command(after_help = "Without a model everything runs on a small built-in one. Try:\n  \
    flashlane chat\n  flashlane serve\n  curl localhost:8000/v1/models")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// How log lines look: text for people, json for collectors. RUST_LOG sets what is logged
    #[arg(long, global = true, env = "FLASHLANE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the OpenAI API over HTTP
    #[command(after_long_help = SERVE_HELP)]
    Serve(ServeArgs),
    /// Talk to the model in the terminal
    Chat(ChatArgs),
    /// Prove the model's steps free of hazards, or show where they are not
    Verify(VerifyArgs),
    /// Say what a checkpoint holds: sizes, formats, layers
    #[command(after_long_help = INSPECT_HELP)]
    Inspect(InspectArgs),
    /// Convert a checkpoint to quantised weights
    #[command(after_long_help = QUANTIZE_HELP)]
    Quantize(QuantizeArgs),
    /// Generate the built-in model's tasks, with their answers
    Tasks(TasksArgs),
    /// Run many agentic sessions at once and count what comes back broken
    Stress(StressArgs),
    /// Measure how often the built-in model is right, on held-out items
    Eval(EvalArgs),
    /// Run every known bug and fault, and say which instrument sees it
    Matrix(MatrixArgs),
    /// Run one operation on your own tensors
    Op(crate::op::OpArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Counts that fail here, in words, and not where a million of them are made.
fn from_1_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Which model runs, and how.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// Checkpoint directory with config.json, tokenizer.json and safetensors; without it, the built-in model
    #[arg(long, env = "FLASHLANE_MODEL", value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Longest sequence, prompt and answer together, in tokens; without it, what the model allows, at most 8192
    #[arg(long, env = "FLASHLANE_MAX_MODEL_LEN", value_name = "TOKENS")]
    pub max_model_len: Option<usize>,
    /// Requests in one step; more wait in the queue. Between two tokens of an answer at most one block of 256 tokens of
    /// other prompts is read; every other block goes to the shortest prompt
    #[arg(long, env = "FLASHLANE_MAX_NUM_SEQS", value_name = "N", default_value_t = 8, value_parser = from_1_to(1024))]
    pub max_num_seqs: usize,
    /// Rows of the decode steps that are built, and on a GPU captured, at start, besides one of --max-num-seqs rows: a batch
    /// runs in the smallest that holds it. More of them waste fewer rows and take longer to start; tokens do not depend on them
    #[arg(long, env = "FLASHLANE_DECODE_BUCKETS", value_name = "N,N,…", default_value_t)]
    pub decode_buckets: DecodeBuckets,
    /// Requests that may wait; further ones are answered 429
    #[arg(long, env = "FLASHLANE_MAX_NUM_QUEUED_REQUESTS", value_name = "N", default_value_t = 64)]
    pub max_num_queued_requests: usize,
    /// Cache pages of 256 tokens; without it, enough for every running request at full length
    #[arg(long, env = "FLASHLANE_NUM_PAGES", value_name = "N")]
    pub num_pages: Option<usize>,
    /// Number format of the indexer's keys [default: bf16; with --rounding off, f32]
    #[arg(long, env = "FLASHLANE_INDEX_K", value_enum)]
    pub index_k: Option<IndexK>,
    /// Number format of the attention cache; fp8 is what the model was trained with [default: fp8; with --rounding off, f32]
    #[arg(long, env = "FLASHLANE_KV_CACHE_DTYPE", value_enum)]
    pub kv_cache_dtype: Option<KvCacheDtype>,
    /// Threads of the CPU path [default: one per core]; the tokens do not depend on it
    #[arg(long, env = "FLASHLANE_THREADS", value_name = "N", value_parser = from_1_to(1024))]
    pub threads: Option<usize>,
    /// trained: bf16 activations and the roundings of training; off: f32 and none (to compare with other implementations)
    #[arg(long, env = "FLASHLANE_ROUNDING", value_enum, default_value_t = Rounding::Trained)]
    pub rounding: Rounding,
    /// Where the model runs: auto, cpu or cuda:N
    #[arg(long, env = "FLASHLANE_DEVICE", default_value = "auto")]
    pub device: Device,
    /// On a GPU: replay each step as a captured graph, read back and proved; off launches every kernel anew
    #[arg(long, env = "FLASHLANE_GRAPH", value_enum, value_name = "on|off", default_value_t = OnOff::On, hide_possible_values = true)]
    pub graph: OnOff,
    /// On a GPU: the lanes of a step side by side on streams of their own, or one after another; the tokens do not depend on it
    #[arg(long, env = "FLASHLANE_SCHEDULE", value_enum, default_value_t = Schedule::Forked)]
    pub schedule: Schedule,
    /// On a GPU: programmatic dependent launch, kernels beginning while their predecessors end
    #[arg(long, env = "FLASHLANE_PDL", value_enum, value_name = "on|off", default_value_t = OnOff::On, hide_possible_values = true)]
    pub pdl: OnOff,
    /// On a GPU: which kernel scores the index keys; simple is the readable one, and slow
    #[arg(long, env = "FLASHLANE_INDEX_READER", value_enum, default_value_t = IndexReader::Fast)]
    pub index_reader: IndexReader,
    /// Whether answers begin with reasoning when the request does not say: auto is the model's own default
    #[arg(long, env = "FLASHLANE_THINKING", value_enum, default_value_t = Switch::Auto)]
    pub thinking: Switch,
    #[command(flatten)]
    pub instruments: InstrumentArgs,
}

/// What watches the steps while they run. It changes neither a step nor its memory, and costs time.
#[derive(Clone, Debug, Default, Args)]
pub struct InstrumentArgs {
    /// Hash cache rows when they are stored and again later, so many MiB a step, and log what changed in between
    #[arg(long, env = "FLASHLANE_CANARY", value_name = "MIB", num_args = 0..=1, default_missing_value = "256",
        value_parser = from_1_to(1 << 20))]
    #[arg(long_help = CANARY_HELP, help_heading = "Instruments")]
    pub canary: Option<usize>,
    /// Run one step in N again, one kernel after another, and log what differs
    #[arg(long, env = "FLASHLANE_DIFF_EVERY", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(long_help = DIFF_HELP, help_heading = "Instruments")]
    pub diff_every: Option<u64>,
    /// Put faults into the running engine, to see who notices: KIND[:KEY=VALUE,...]; --help has the kinds
    #[arg(long, env = "FLASHLANE_INJECT", value_name = "SPEC")]
    #[arg(long_help = inject_help(), help_heading = "Instruments")]
    pub inject: Option<Fault>,
}

impl InstrumentArgs {
    pub fn options(&self) -> Instruments {
        Instruments {
            canary: self.canary.map(|mib| mib << 20),
            diff_every: self.diff_every,
            inject: self.inject,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IndexK {
    Bf16,
    Fp8,
    Fp4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    Fp8,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rounding {
    Trained,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IndexReader {
    Simple,
    Fast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    Serial,
    Forked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Auto,
    Cpu,
    Cuda(u32),
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(Self::Cuda).ok_or_else(|| format!("expected auto, cpu or cuda:N, found {text:?}"))
            }
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Name that requests must use; without it, the checkpoint directory's name
    #[arg(long, env = "FLASHLANE_SERVED_MODEL_NAME", value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Address to listen on; 0.0.0.0 for all
    #[arg(long, env = "FLASHLANE_HOST", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 picks a free one
    #[arg(long, env = "FLASHLANE_PORT", default_value_t = 8000)]
    pub port: u16,
    /// Key that /v1 requests must send as a bearer token; several separated by commas
    #[arg(
        long,
        env = "FLASHLANE_API_KEY",
        value_name = "KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub api_key: Vec<String>,
    /// Connections at once; further ones are answered 503
    #[arg(long, env = "FLASHLANE_MAX_CONNECTIONS", value_name = "N", default_value_t = 4096, value_parser = from_1_to(1 << 20))]
    pub max_connections: usize,
    /// Largest request body
    #[arg(long, env = "FLASHLANE_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = 32 << 20, value_parser = from_1_to(1 << 40))]
    pub max_body_bytes: usize,
    /// Seconds that running requests may go on after SIGTERM; a second SIGTERM ends at once
    #[arg(long, env = "FLASHLANE_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 60)]
    pub drain_timeout: u64,
}

impl ServeArgs {
    pub fn options(&self) -> ServerOptions {
        ServerOptions {
            api_keys: self.api_key.iter().filter(|key| !key.is_empty()).cloned().collect(),
            max_connections: self.max_connections,
            max_body_bytes: self.max_body_bytes,
            drain_timeout: Duration::from_secs(self.drain_timeout),
            ..ServerOptions::default()
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// System message that opens the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// 0 always takes the most likely token
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f32,
    /// Longest answer in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub max_tokens: usize,
}

#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// Checkpoint directory: config.json and model.safetensors, or the shards of model.safetensors.index.json
    pub dir: PathBuf,
    /// The report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct QuantizeArgs {
    /// Checkpoint directory to read
    pub input: PathBuf,
    /// Directory to create; appears only when it is complete
    pub output: PathBuf,
    /// Format of the routed experts
    #[arg(long, value_enum, default_value_t = Experts::Nvfp4)]
    pub experts: Experts,
    /// Format of the attention projections and shared experts
    #[arg(long, value_enum, default_value_t = Dense::Fp8)]
    pub dense: Dense,
    /// A file of the output is closed at this size; about so much memory is needed, beside one decoded tensor
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_shard_size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Experts {
    Nvfp4,
    Mxfp4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dense {
    Fp8,
    Bf16,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command, Device};

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_has_a_default() {
        let cli = Cli::try_parse_from(["flashlane", "serve"]).unwrap();
        let Command::Serve(serve) = cli.command else { panic!("serve") };
        assert_eq!((serve.port, serve.model.device), (8000, Device::Auto));
    }

    #[test]
    fn counts_that_no_server_can_have_are_refused() {
        for (flag, value) in [
            ("--max-num-seqs", "0"),
            ("--max-num-seqs", "100000"),
            ("--threads", "0"),
            ("--max-connections", "0"),
            ("--max-connections", "18446744073709551615"),
        ] {
            let error = Cli::try_parse_from(["flashlane", "serve", flag, value]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(value) && error.contains("1..="), "{error}");
        }
    }

    #[test]
    fn instruments() {
        let of = |flags: &[&str]| match Cli::try_parse_from([&["flashlane", "serve"], flags].concat()) {
            Ok(Cli { command: Command::Serve(serve), .. }) => Ok(serve.model.instruments.options()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        };
        assert!(!of(&[]).unwrap().any());
        let all = of(&["--canary", "--diff-every", "8", "--inject", "row:rate=0.5"]).unwrap();
        assert_eq!((all.canary, all.diff_every), (Some(256 << 20), Some(8)));
        assert_eq!(all.inject.unwrap().to_string(), "row:seed=0,rate=0.5");
        assert_eq!(of(&["--canary", "3"]).unwrap().canary, Some(3 << 20));
        for (flags, words) in [
            (&["--canary", "0"][..], "1.."),
            (&["--diff-every", "0"], "1.."),
            (&["--inject", "rows"], "kind: expected one of page"),
        ] {
            let error = of(flags).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn devices() {
        assert_eq!("cuda:3".parse(), Ok(Device::Cuda(3)));
        assert!("cuda".parse::<Device>().is_err());
    }
}
