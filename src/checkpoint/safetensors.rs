//! safetensors files: header, ranges and shards, checked before a byte of data is used.
//!
//! The types come from the crate `safetensors`; its reader does not name the tensor that is wrong and keeps the last of two
//! equal names, so the header is walked here.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::CheckpointError;
use super::map::{self, Span};

/// A tensor as a file describes it.
#[derive(Clone, Debug)]
pub(super) struct RawTensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Span,
}

/// Longest header that is read; the largest real one is a few megabytes.
const MAX_HEADER: u64 = 100 << 20;

/// All tensors of a directory: one file, or the shards of an index.
pub(super) fn open_dir(dir: &Path) -> Result<Vec<RawTensor>, CheckpointError> {
    let index = dir.join("model.safetensors.index.json");
    if is_there(&index) {
        return open_shards(dir, &map::read_file(&index)?);
    }
    let single = dir.join("model.safetensors");
    if !is_there(&single) {
        let problem = "holds neither model.safetensors nor model.safetensors.index.json";
        return Err(CheckpointError::file(&dir.display().to_string(), problem));
    }
    read(&Span::map(&single)?, "model.safetensors")
}

/// A link counts, wherever it leads: to nothing is a fault of its own.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[derive(serde::Deserialize)]
#[serde(expecting = "an object")]
struct Index {
    weight_map: Option<Value>,
}

/// The file of each tensor.
fn weight_map(index: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let index: Index =
        serde_json::from_slice(index).map_err(|e| format!("is not a JSON object with a weight_map: {e}"))?;
    let map = index.weight_map.ok_or("weight_map is missing")?;
    let files = map
        .as_object()
        .ok_or_else(|| format!("weight_map: expected an object with the file of each tensor, found {map}"))?;
    let file = |(tensor, file): (&String, &Value)| match file.as_str() {
        Some(file) => Ok((tensor.clone(), file.to_owned())),
        None => Err(format!("weight_map: {tensor}: expected the name of a file, found {file}")),
    };
    files.iter().map(file).collect()
}

/// Reads each shard once and holds it to the index, in both directions.
fn open_shards(dir: &Path, index: &[u8]) -> Result<Vec<RawTensor>, CheckpointError> {
    const INDEX: &str = "model.safetensors.index.json";
    let weight_map = weight_map(index).map_err(|problem| CheckpointError::file(INDEX, problem))?;
    let mut shards: BTreeMap<&str, HashSet<&str>> = BTreeMap::new();
    for (tensor, shard) in &weight_map {
        shards.entry(shard).or_default().insert(tensor);
    }
    let mut tensors = Vec::with_capacity(weight_map.len());
    for (shard, mut listed) in shards {
        if !is_file_name(shard) {
            return Err(CheckpointError::file(
                INDEX,
                format!("{shard:?} is not the name of a file beside it"),
            ));
        }
        let path = dir.join(shard);
        if !is_there(&path) {
            return Err(CheckpointError::file(
                INDEX,
                format!("names the shard {shard}, which does not exist"),
            ));
        }
        for tensor in read(&Span::map(&path)?, shard)? {
            if !listed.remove(tensor.name.as_str()) {
                let problem = format!("{} is not listed for this shard in {INDEX}", tensor.name);
                return Err(CheckpointError::file(shard, problem));
            }
            tensors.push(tensor);
        }
        if let Some(missing) = listed.iter().min() {
            return Err(CheckpointError::file(shard, format!("lacks {missing}, which {INDEX} places here")));
        }
    }
    Ok(tensors)
}

/// One plain component: no separators, no `..`, no root.
fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(Component::Normal(part)) if part == name) && parts.next().is_none()
}

/// The tensors of one file, in the order of its header.
pub(super) fn read(bytes: &Span, file: &str) -> Result<Vec<RawTensor>, CheckpointError> {
    let fail = |problem: String| CheckpointError::file(file, problem);
    let (header, data_start) = header(bytes).map_err(fail)?;
    let Header(entries) =
        serde_json::from_slice(header).map_err(|e| fail(format!("the header is not valid: {e}")))?;
    let data_len = bytes.len() - data_start;
    check_ranges(&entries, data_len).map_err(fail)?;
    let tensors = entries.into_iter().map(|(name, info)| {
        let (begin, end) = info.data_offsets;
        let data = bytes.slice(data_start + begin..data_start + end);
        let data = data.ok_or_else(|| fail(format!("{name} lies outside the file")))?;
        Ok(RawTensor { name, dtype: info.dtype, shape: info.shape, data })
    });
    tensors.collect()
}

/// The header's bytes and where the data starts.
fn header(bytes: &[u8]) -> Result<(&[u8], usize), String> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!("has {} bytes, too few for a safetensors file", bytes.len()));
    };
    let len = u64::from_le_bytes(*prefix);
    if len > MAX_HEADER {
        return Err(format!("the header is said to be {len} bytes long, more than {MAX_HEADER}"));
    }
    let len = len as usize;
    match rest.get(..len) {
        Some(header) => Ok((header, 8 + len)),
        None => Err(format!("the header is said to be {len} bytes long, the file has {} left", rest.len())),
    }
}

/// Each tensor's range must fit its shape and the file; together they must cover the data once.
fn check_ranges(entries: &[(String, TensorInfo)], data_len: usize) -> Result<(), String> {
    for (name, info) in entries {
        let (begin, end) = info.data_offsets;
        let bytes = byte_len(info).ok_or_else(|| format!("{name}: shape {:?} is too large", info.shape))?;
        if end.checked_sub(begin) != Some(bytes) {
            return Err(format!(
                "{name}: shape {:?} of {:?} takes {bytes} bytes, its range is {begin}..{end}",
                info.shape, info.dtype
            ));
        }
        if end > data_len {
            return Err(format!("{name} ends at byte {end} of the data, the file has only {data_len}"));
        }
    }
    let mut order: Vec<_> = entries.iter().map(|(name, info)| (info.data_offsets, name)).collect();
    order.sort_unstable();
    let mut covered = 0;
    let mut before = None;
    for ((begin, end), name) in order {
        match before {
            Some(before) if begin < covered => return Err(format!("{before} and {name} overlap")),
            _ if begin > covered => return Err(format!("bytes {covered}..{begin} belong to no tensor")),
            _ => {}
        }
        covered = end;
        before = Some(name);
    }
    if covered < data_len {
        return Err(format!("bytes {covered}..{data_len} belong to no tensor"));
    }
    Ok(())
}

fn byte_len(info: &TensorInfo) -> Option<usize> {
    let elements = info.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    let bits = elements.checked_mul(info.dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// What an entry of the header says.
fn info(entry: &Value) -> Result<TensorInfo, String> {
    let field = |name: &str| {
        let missing = || format!("expected an object with dtype, shape and data_offsets, found {entry}");
        entry.get(name).ok_or_else(missing)
    };
    let [dtype, shape, offsets] = [field("dtype")?, field("shape")?, field("data_offsets")?];
    Ok(TensorInfo {
        dtype: Dtype::deserialize(dtype)
            .map_err(|_| format!("dtype: expected a type such as \"BF16\" or \"F8_E4M3\", found {dtype}"))?,
        shape: Vec::deserialize(shape)
            .map_err(|_| format!("shape: expected a list of integers from 0 up, found {shape}"))?,
        data_offsets: Deserialize::deserialize(offsets)
            .map_err(|_| format!("data_offsets: expected two integers from 0 up, found {offsets}"))?,
    })
}

/// The header's entries; a second entry of one name is an error, and errors name their entry.
struct Header(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor).map(Self)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<(String, TensorInfo)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with an entry for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut entries, mut seen) = (Vec::new(), HashSet::new());
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("{name} appears twice")));
            }
            let entry = map.next_value().map_err(|e| A::Error::custom(format!("{name}: {e}")))?;
            let info = info(&entry).map_err(|problem| A::Error::custom(format!("{name}: {problem}")))?;
            entries.push((name, info));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with the given header text and data length.
    fn file(header: &str, data: usize) -> Span {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes.into()
    }

    fn refusal(bytes: impl Into<Span>) -> String {
        read(&bytes.into(), "f").unwrap_err().to_string()
    }

    fn entry(name: &str, shape: &str, begin: u64, end: u64) -> String {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    }

    #[test]
    fn reads_what_the_crate_writes() {
        let data: Vec<u8> = (0..24).collect();
        let views = [
            ("b", safetensors::tensor::TensorView::new(Dtype::F32, vec![2, 2], &data[..16]).unwrap()),
            ("a", safetensors::tensor::TensorView::new(Dtype::I64, vec![1], &data[16..]).unwrap()),
            ("none", safetensors::tensor::TensorView::new(Dtype::BF16, vec![0, 7], &[]).unwrap()),
        ];
        let tensors = read(&safetensors::serialize(views, None).unwrap().into(), "f").unwrap();
        let b = tensors.iter().find(|t| t.name == "b").unwrap();
        assert_eq!((b.dtype, b.shape.as_slice(), &*b.data), (Dtype::F32, [2, 2].as_slice(), &data[..16]));
        assert_eq!(tensors.len(), 3);
    }

    #[test]
    fn each_malformed_file_gets_its_sentence() {
        let two = |b: &str| file(&format!("{{{},{b}}}", entry("a", "[2]", 0, 8)), 16);
        let of = |dtype: &str, shape: &str, offsets: &str| {
            let entry = format!(r#"{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}"#);
            refusal(file(&format!("{{\"a\":{entry}}}"), 8))
        };
        let cases = [
            (refusal(vec![1, 2]), "f: has 2 bytes, too few"),
            (refusal(u64::MAX.to_le_bytes().to_vec()), "said to be 18446744073709551615 bytes"),
            (refusal((1u64 << 63).to_le_bytes().to_vec()), "said to be 9223372036854775808 bytes"),
            (refusal(9u64.to_le_bytes().to_vec()), "said to be 9 bytes long, the file has 0 left"),
            (refusal(file("[1]", 0)), "the header is not valid: invalid type: sequence"),
            (
                refusal(file("{\"a\": 3}", 0)),
                "a: expected an object with dtype, shape and data_offsets, found 3",
            ),
            (
                refusal(file("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0)),
                "a: expected an object with dtype, shape and data_offsets, found {",
            ),
            (of("\"F32\"", "[-1]", "[0,8]"), "a: shape: expected a list of integers from 0 up, found [-1]"),
            (of("\"F32\"", "[2.0]", "[0,8]"), "shape: expected a list of integers from 0 up, found [2.0]"),
            (of("\"F32\"", "\"2\"", "[0,8]"), "shape: expected a list of integers from 0 up, found \"2\""),
            (of("\"F32\"", "[18446744073709551616]", "[0,8]"), "found [1.8446744073709552e+19]"),
            (of("\"f32\"", "[2]", "[0,8]"), "a: dtype: expected a type such as \"BF16\" or"),
            (of("\"F99\"", "[2]", "[0,8]"), "found \"F99\""),
            (of("3", "[2]", "[0,8]"), "a: dtype: expected a type such as \"BF16\" or \"F8_E4M3\", found 3"),
            (of("\"F32\"", "[2]", "[0,4,8]"), "data_offsets: expected two integers from 0 up, found [0,4,8]"),
            (of("\"F32\"", "[2]", "[-8,0]"), "data_offsets: expected two integers from 0 up, found [-8,0]"),
            (refusal(two(&entry("a", "[2]", 8, 16))), "a appears twice"),
            (refusal(two(&entry("b", "[2]", 4, 12))), "a and b overlap"),
            (refusal(two(&entry("b", "[1]", 12, 16))), "bytes 8..12 belong to no tensor"),
            (refusal(two(&entry("b", "[1]", 8, 12))), "bytes 12..16 belong to no tensor"),
            (refusal(two(&entry("b", "[3]", 8, 20))), "b ends at byte 20 of the data, the file has only 16"),
            (
                refusal(two(&entry("b", "[3]", 8, 16))),
                "b: shape [3] of F32 takes 12 bytes, its range is 8..16",
            ),
            (refusal(two(&entry("b", "[2]", 16, 8))), "its range is 16..8"),
            (refusal(two(&entry("b", "[4294967296,4294967296]", 8, 16))), "is too large"),
            (refusal(two(&entry("b", "[9223372036854775808]", 8, 16))), "is too large"),
        ];
        for (found, expected) in cases {
            assert!(found.contains(expected), "{found:?} lacks {expected:?}");
        }
    }

    #[test]
    fn shard_names_stay_in_the_directory() {
        assert!(is_file_name("model-00001-of-00002.safetensors"));
        for bad in ["", ".", "..", "/etc/passwd", "a/b", "../a", "a/"] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }
}
