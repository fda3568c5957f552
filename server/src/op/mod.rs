//! `flashlane op`: one operation on the user's own tensors.

mod bind;
mod catalogue;
mod nvfp4;
mod run;
mod spec;
pub mod tensors;

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use bind::Bound;
use catalogue::{NOT_COVERED, OPS};
pub use run::Place;
use spec::{Kind, Operand, Spec};
use tensors::Tensors;

/// Run one operation on your own tensors
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true)]
pub struct OpArgs {
    /// The operation; without one, or with --list, all are listed
    pub name: Option<String>,
    /// List the operations
    #[arg(long)]
    pub list: bool,
    /// Say what the operation takes and gives, with an example
    #[arg(long, short)]
    pub help: bool,
    /// Safetensors file with the operands by name
    #[arg(long = "in", value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Safetensors file to write the results to
    #[arg(long = "out", value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Where it runs: cpu, reference (f64, the oracle) or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: Place,
    /// A number that the operation takes, such as k=512; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = pair)]
    pub params: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, found {text:?}"))?;
    Ok((name.into(), value.into()))
}

/// Runs the command.
///
/// # Errors
/// A sentence that names the file, tensor, dimension or parameter.
pub fn command(args: &OpArgs) -> anyhow::Result<()> {
    let text = match (&args.name, args.list || args.help) {
        (Some(name), true) if !args.list => help(name)?,
        (Some(name), false) => return execute(name, args),
        _ => listing(),
    };
    use std::io::Write as _;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn find(name: &str) -> anyhow::Result<&'static Spec> {
    if let Some(spec) = OPS.iter().find(|s| s.name == name) {
        return Ok(spec);
    }
    if NOT_COVERED.split(", ").any(|other| other == name) {
        bail!("{name} is not covered by flashlane op; flashlane op --list names those that are");
    }
    bail!("there is no operation {name:?}; flashlane op --list names them")
}

fn execute(name: &str, args: &OpArgs) -> anyhow::Result<()> {
    let special = [nvfp4::QUANTIZE, nvfp4::DEQUANTIZE].contains(&name);
    let spec = if special { None } else { Some(find(name)?) };
    let input =
        args.input.as_ref().with_context(|| format!("--in is missing; flashlane op {name} --help"))?;
    let output =
        args.output.as_ref().with_context(|| format!("--out is missing; flashlane op {name} --help"))?;
    let given = tensors::read(input)?;
    let results = match spec {
        Some(spec) => apply(spec, &given, &args.params, args.device)?,
        None if args.params.is_empty() => nvfp4::run(name, &given, args.device)?,
        None => bail!("--param {}: {name} takes none", args.params[0].0),
    };
    tensors::write(output, &results)
}

/// Runs an operation over `given` and returns its outputs.
fn apply(spec: &Spec, given: &Tensors, params: &[(String, String)], place: Place) -> anyhow::Result<Tensors> {
    let mut bound = Bound::new(spec, given, spec.parameters(params)?)?;
    let memory = run::run(&mut bound, place)?;
    let one = |o: &Operand| Ok((o.name.to_owned(), bound.result(o, &memory)?));
    spec.outputs.iter().map(one).collect()
}

fn listing() -> String {
    let mut text = String::from("Operations; flashlane op NAME --help says what one takes and gives\n\n");
    for spec in OPS {
        let _ = writeln!(text, "  {:18}{}", spec.name, spec.about);
    }
    for about in [nvfp4::DEQUANTIZE_HELP, nvfp4::QUANTIZE_HELP] {
        let (name, rest) = about.lines().next().unwrap_or_default().split_once(": ").unwrap_or_default();
        let _ = writeln!(text, "  {name:18}{rest}");
    }
    let _ = writeln!(text, "\nNot covered: {NOT_COVERED}");
    text
}

fn help(name: &str) -> anyhow::Result<String> {
    if name == nvfp4::DEQUANTIZE || name == nvfp4::QUANTIZE {
        let about = if name == nvfp4::QUANTIZE { nvfp4::QUANTIZE_HELP } else { nvfp4::DEQUANTIZE_HELP };
        return Ok(format!("{about}\n\nflashlane op {name} --in x.safetensors --out y.safetensors\n"));
    }
    let spec = find(name)?;
    let mut text = format!("{name}: {}\n\n", spec.about);
    for (label, operands) in [("in ", spec.inputs), ("out", spec.outputs)] {
        for operand in operands {
            let (kind, dims) = (operand.kind.words(), operand.dims.join(", "));
            let may = if operand.default.is_some() { " (may be absent)" } else { "" };
            let _ = writeln!(text, "{label}  {:12}{kind} [{dims}]  {}{may}", operand.name, operand.about);
        }
    }
    for param in spec.params {
        let default = param.default.map_or(String::from("needed"), |v| format!("default {v}"));
        let _ = writeln!(text, "--param {}=...  {} ({default})", param.name, param.about);
    }
    if spec.inputs.iter().any(|o| o.kind == Kind::Weight) {
        text += "\nA weight in U8 is two e2m1 codes a byte, its last dimension half as long. NAME.scales (U8) has a scale for each\n\
                 16 columns beside NAME.scale2 (F32, one a matrix): NVFP4; or for each 32, without NAME.scale2: MXFP4.\n";
    }
    let needed = spec.params.iter().filter(|p| p.default.is_none());
    let params: String = needed.map(|p| format!(" --param {}=4", p.name)).collect();
    let shapes: Vec<String> = spec.inputs.iter().filter(|o| o.default.is_none()).map(example).collect();
    let _ = write!(
        text,
        "\nExample, with Python's numpy and safetensors:\n  save_file({{{}}}, \"x.safetensors\")\n  \
         flashlane op {name} --in x.safetensors --out y.safetensors{params}\n",
        shapes.join(", ")
    );
    Ok(text)
}

/// A numpy expression that makes an operand: every named dimension is 4, or 64 where vectors of a weight run along it.
fn example(operand: &Operand) -> String {
    let dims: Vec<String> = operand.dims.iter().map(|d| number(d).to_string()).collect();
    let (shape, name) = (dims.join(", "), operand.name);
    match operand.kind {
        Kind::I32 => format!("\"{name}\": numpy.zeros(({shape},), \"int32\")"),
        _ => format!("\"{name}\": numpy.ones(({shape},), \"float32\")"),
    }
}

fn number(dim: &str) -> usize {
    match dim.split_once('*') {
        Some((times, name)) => times.parse::<usize>().unwrap_or(1) * number(name),
        None => dim.parse().unwrap_or(if ["hidden", "width", "cols_in"].contains(&dim) { 64 } else { 4 }),
    }
}
