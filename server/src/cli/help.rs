//! The long texts of `--help`.

use flashlane::instrument::SPEC;

pub(super) const SERVE_HELP: &str = "\
Routes: POST /v1/chat/completions and /v1/completions, GET /v1/models, /health, /version and /metrics. An answer never depends on \
what else is served at the time.

Examples:
  flashlane serve                                        the built-in model on 127.0.0.1:8000
  flashlane serve --model DIR --host 0.0.0.0 --api-key \"$KEY\"
  curl localhost:8000/v1/chat/completions -d '{\"model\": \"flashlane-tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"What are you?\"}]}'";

pub(super) const INSPECT_HELP: &str = "\
Every tensor is held to config.json by name, shape and type, and every scale must be a finite number; a checkpoint with a fault is \
refused in a sentence that names the file, key or tensor, what was expected and what was found. The values of weights are read only \
when a model is served or converted. No tokenizer is needed.

Attention of a layer: Window, the last 128 tokens alone; C4, also the best compressed rows of 4 tokens; C128, also all rows of 128. \
NVFP4 matrices whose scales are all powers of two were cast from another format; those said to equal MXFP4 can be cast back \
without loss.

Examples:
  flashlane inspect DIR
  flashlane inspect --json DIR | jq .formats";

pub(super) const QUANTIZE_HELP: &str = "\
Reads any checkpoint that `inspect` accepts, draft and vision tensors apart, and writes the official names and layout. Tensors that \
have their format already are copied bit for bit, and MXFP4 experts become NVFP4 without loss where their scales allow it. The \
tokenizer and other small files are copied.

OUTPUT appears when all of it has been written and read back. Ctrl-C removes what there is after the tensor under way; a process that \
is killed leaves a directory .OUTPUT.incomplete-PID beside it, without config.json, which may be deleted.

Examples:
  flashlane quantize DeepSeek-V4-Flash-BF16 flash-nvfp4
  flashlane quantize --experts mxfp4 --dense bf16 --max-shard-size 2000000000 IN OUT";

pub(super) const CANARY_HELP: &str = "\
Hash cache rows when they are stored and again later, so many MiB a step (256 if no number is given), and log what changed in \
between: `canary hit step=... layer=... page=... owner=... rows=[...]`, with the kernels that may have written there. Full pages \
are hashed whole, the page being filled by row. The summary at exit says within how many steps a change is seen.

It cannot see a request storing a wrong row of its own: that row is what it takes for true. --diff-every can.";

pub(super) const DIFF_HELP: &str = "\
Run one step in N again, one kernel after another, on the same inputs with the stores turned to pages that no request holds, and \
log what differs: `diff step=... layer=... topk_dis=...`. Compared bit by bit: logits, selected rows and experts of every layer, \
stored cache rows and states. 1 takes every step and more than doubles the time of each.

It cannot see what is wrong in both runs: a kernel's own mistake, or a page that has changed before.";

pub(super) fn inject_help() -> String {
    format!(
        "Put faults into the running engine, to see who notices.\n\n{SPEC}\n\nExamples:\n  \
         --canary --inject page               every step a page is overwritten; the canary tells each\n  \
         --diff-every 8 --inject row          every step an owner's own row is wrong; the differential tells it\n  \
         --inject index:layer=2,rate=0.01     one selected row in a hundred of layer 2 is another"
    )
}
