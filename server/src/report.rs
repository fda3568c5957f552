//! `flashlane inspect` for people.

use std::io::{self, Write};

use flashlane::checkpoint::Report;

/// Writes a report as lines of text.
///
/// # Errors
/// The output failed.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{} layers, hidden {}, vocabulary {}, up to {} tokens",
        report.num_hidden_layers, report.hidden_size, report.vocab_size, report.max_position_embeddings
    )?;
    writeln!(out, "{} parameters in {} bytes", report.parameters, report.bytes)?;
    for (format, sizes) in &report.formats {
        writeln!(
            out,
            "  {format:?}: {} tensors, {} parameters, {} bytes",
            sizes.tensors, sizes.parameters, sizes.bytes
        )?;
    }
    for layer in &report.layers {
        let routing = if layer.hash_routed { "hash" } else { "scored" };
        writeln!(
            out,
            "layer {}: {:?} attention, {routing} routing, dense {:?}, experts {:?}, {} bytes",
            layer.layer, layer.attention, layer.dense, layer.experts, layer.bytes
        )?;
    }
    if let Some(nvfp4) = report.nvfp4 {
        let (all, powers, exact) = (nvfp4.matrices, nvfp4.power_of_two, nvfp4.exact_mxfp4);
        writeln!(out, "NVFP4: {all} matrices, {powers} with power-of-two scales, {exact} equal to MXFP4")?;
    }
    for skipped in &report.skipped {
        writeln!(out, "{skipped}")?;
    }
    Ok(())
}
