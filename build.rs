//! Compiles `csrc/*.cu` for feature `cuda`: each file to one fatbin, embedded in the crate and loaded through the driver, so
//! nothing of CUDA is linked. Without nvcc the crate builds with no kernels, unless feature `require-nvcc` is on.
//!
//! Environment: `NVCC` (a path, or `off`), `FLASHLANE_CUDA_ARCHS` (default `sm_90a,sm_120a,compute_90`; `compute_` is PTX).
//! Features `emulator` and `bindgen` add what the tests use. Without feature `cuda` this script does nothing.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const DEFAULT_ARCHS: &str = "sm_90a,sm_120a,compute_90";

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=csrc");
    for name in ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", "FLASHLANE_CUDA_ARCHS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let sources = sources(&root.join("csrc"))?;
    let (found, searched) = find_nvcc(&root);
    let list = match found {
        Some(nvcc) => compile_all(&nvcc, &sources, &out)?,
        None if env::var_os("CARGO_FEATURE_REQUIRE_NVCC").is_some() => {
            return Err(format!(
                "feature require-nvcc is on and there is no nvcc; looked for {}. tools/get-cuda.sh brings one.",
                searched.join(", ")
            )
            .into());
        }
        None => String::from("&[]"),
    };
    fs::write(
        out.join("fatbins.rs"),
        format!("/// Fatbins by source file.\npub(super) const FATBINS: &[(&str, &[u8])] = {list};\n"),
    )?;
    #[cfg(feature = "emulator")]
    build_emulator(&root, &sources);
    #[cfg(feature = "bindgen")]
    generate_bindings(&root, &out)?;
    Ok(())
}

fn sources(csrc: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(csrc)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "cu") {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// The compiler, and every place that was looked at.
fn find_nvcc(root: &Path) -> (Option<PathBuf>, Vec<String>) {
    let mut places = Vec::new();
    if let Some(nvcc) = env::var_os("NVCC") {
        if nvcc == "off" {
            return (None, vec![String::from("nothing, as NVCC=off says")]);
        }
        places.push(PathBuf::from(nvcc));
    }
    places.extend(
        ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(|d| Path::new(&d).join("bin/nvcc")),
    );
    places.push(root.join(".toolchain/cuda/bin/nvcc"));
    places.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()).map(|d| d.join("nvcc")));
    places.push(PathBuf::from("/usr/local/cuda/bin/nvcc"));
    let found = places.iter().find(|p| p.is_file()).cloned();
    (found, places.iter().map(|p| p.display().to_string()).collect())
}

/// Compiles every source and returns the Rust list of their fatbins. As many at a time as cargo allows jobs.
fn compile_all(nvcc: &Path, sources: &[PathBuf], out: &Path) -> Result<String> {
    let archs = env::var("FLASHLANE_CUDA_ARCHS").unwrap_or_else(|_| DEFAULT_ARCHS.into());
    let targets = archs.split(',').map(|a| target(a.trim())).collect::<Result<Vec<_>>>()?;
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1usize).max(1);
    let mut list = String::from("&[\n");
    for batch in sources.chunks(jobs) {
        let mut running = Vec::new();
        for source in batch {
            let name =
                source.file_stem().and_then(|s| s.to_str()).ok_or("a kernel's file name is not UTF-8")?;
            let fatbin = out.join(format!("{name}.fatbin"));
            let mut command = Command::new(nvcc);
            command.args(["-std=c++17", "-O3", "-fmad=false", "-lineinfo", "-fatbin"]);
            command.args(&targets).arg("-o").arg(&fatbin).arg(source);
            running.push((source, command.spawn()?));
            writeln!(list, "    ({name:?}, include_bytes!({:?})),", fatbin.display().to_string())?;
        }
        for (source, mut child) in running {
            if !child.wait()?.success() {
                return Err(format!("nvcc failed on {}", source.display()).into());
            }
        }
    }
    list.push(']');
    Ok(list)
}

fn target(arch: &str) -> Result<String> {
    if let Some(number) = arch.strip_prefix("sm_") {
        return Ok(format!("-gencode=arch=compute_{number},code={arch}"));
    }
    if arch.starts_with("compute_") {
        return Ok(format!("-gencode=arch={arch},code={arch}"));
    }
    Err(format!("FLASHLANE_CUDA_ARCHS: expected sm_N or compute_N, found {arch:?}").into())
}

/// Kernel sources, unmodified, as C++ for the emulator.
#[cfg(feature = "emulator")]
fn build_emulator(root: &Path, sources: &[PathBuf]) {
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .opt_level(2)
        .warnings(false)
        .flag("-ffp-contract=off")
        .flag("-xc++")
        .files(sources)
        .file(root.join("csrc/emu/emu.cpp"))
        .file(root.join("csrc/emu/host.cpp"))
        .file(root.join("csrc/emu/planted.cpp"))
        .compile("flashlane_emulator");
}

/// Parameter structs from their headers, for the freshness test.
#[cfg(feature = "bindgen")]
fn generate_bindings(root: &Path, out: &Path) -> Result<()> {
    let wheel = root.join(".toolchain/libclang");
    if env::var_os("LIBCLANG_PATH").is_none() && wheel.is_dir() {
        // SAFETY: a build script has one thread here.
        unsafe { env::set_var("LIBCLANG_PATH", &wheel) };
    }
    let gcc = Command::new("gcc").arg("-print-file-name=include").output()?;
    let include = String::from_utf8(gcc.stdout)?;
    let mut headers = Vec::new();
    for entry in fs::read_dir(root.join("csrc"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "h") {
            headers.push(path.display().to_string());
        }
    }
    headers.sort();
    let bindings = bindgen::Builder::default()
        .headers(headers)
        .clang_arg(format!("-isystem{}", include.trim()))
        .allowlist_type(".*Params")
        .allowlist_var("k(Weight|Compressed|Fill).*")
        .allowlist_type("WeightFormat|CompressedRows|FillKind")
        .prepend_enum_name(false)
        .derive_default(false)
        .layout_tests(true)
        .formatter(bindgen::Formatter::Prettyplease)
        .disable_header_comment()
        .generate()?;
    fs::write(out.join("ffi.rs"), bindings.to_string())?;
    Ok(())
}
