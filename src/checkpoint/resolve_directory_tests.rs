//! Directories: sharded, single-file and linked ones, and a sentence for each that is no checkpoint.

use std::path::Path;

use super::{Files, everything};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::synthetic::{self, tiny_config};

#[test]
fn shards_single_files_and_symbolic_links_load_the_same() {
    let (files, dir, links) = (Files::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    files.write_sharded(dir.path(), 20);
    let expected = everything(&files.open().unwrap());
    assert!(everything(&Checkpoint::open(dir.path()).unwrap()) == expected);
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        std::os::unix::fs::symlink(&path, links.path().join(path.file_name().unwrap())).unwrap();
    }
    assert!(everything(&Checkpoint::open(links.path()).unwrap()) == expected);
    let single = tempfile::tempdir().unwrap();
    synthetic::write(single.path(), &tiny_config(), 1).unwrap();
    assert!(everything(&Checkpoint::open(single.path()).unwrap()) == expected);
}

/// `models--name/snapshots/revision` of relative links into `blobs`, as the Hub's clients keep it.
#[test]
fn the_cache_of_the_hub_loads() {
    let (files, dir) = (Files::new(), tempfile::tempdir().unwrap());
    let (blobs, snapshot) = (dir.path().join("blobs"), dir.path().join("snapshots/0123abcd"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    files.write_sharded(&blobs, 20);
    for (i, entry) in std::fs::read_dir(&blobs).unwrap().enumerate() {
        let path = entry.unwrap().path();
        let blob = format!("{i:040x}");
        std::fs::rename(&path, blobs.join(&blob)).unwrap();
        let link = snapshot.join(path.file_name().unwrap());
        std::os::unix::fs::symlink(Path::new("../../blobs").join(blob), link).unwrap();
    }
    let expected = everything(&files.open().unwrap());
    assert!(everything(&Checkpoint::open(&snapshot).unwrap()) == expected);
    std::fs::remove_file(blobs.join(format!("{:040x}", 0))).unwrap();
    assert!(Checkpoint::open(&snapshot).is_err(), "a link to a blob that is not there");
}

/// Opens a sharded directory after `spoil` had its way with it; returns the message without the directory.
fn spoiled(spoil: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    Files::new().write_sharded(dir.path(), 20);
    spoil(dir.path());
    let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
    message.replace(&format!("{}/", dir.path().display()), "")
}

fn edit_index(dir: &Path, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = dir.join("model.safetensors.index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(index["weight_map"].as_object_mut().unwrap());
    std::fs::write(path, index.to_string()).unwrap();
}

#[test]
fn each_broken_directory_gets_its_sentence() {
    let first = "model-00000.safetensors";
    let index = "model.safetensors.index.json";
    let truncate = |dir: &Path| {
        let bytes = std::fs::read(dir.join(first)).unwrap();
        std::fs::write(dir.join(first), &bytes[..bytes.len() - 1]).unwrap();
    };
    let cases = [
        (spoiled(|d| std::fs::remove_file(d.join("config.json")).unwrap()), "config.json: No such file"),
        (spoiled(|d| std::fs::remove_file(d.join(index)).unwrap()), "holds neither model.safetensors nor"),
        (
            spoiled(|d| std::fs::remove_file(d.join(first)).unwrap()),
            "model.safetensors.index.json: names the shard model-00000.safetensors, which does not exist",
        ),
        (spoiled(truncate), "of the data, the file has only"),
        (spoiled(|d| std::fs::write(d.join(index), "{}").unwrap()), "weight_map is missing"),
        (
            spoiled(|d| std::fs::write(d.join(index), r#"{"weight_map": {"a": 3}}"#).unwrap()),
            "model.safetensors.index.json: weight_map: a: expected the name of a file, found 3",
        ),
        (
            spoiled(|d| std::fs::write(d.join(index), r#"{"weight_map": [1]}"#).unwrap()),
            "weight_map: expected an object with the file of each tensor, found [1]",
        ),
        (
            spoiled(|d| std::fs::write(d.join(index), "null").unwrap()),
            "model.safetensors.index.json: is not a JSON object with a weight_map: invalid type: null",
        ),
        (
            spoiled(|d| std::fs::write(d.join(index), r#"{"weight_map": {}, "weight_map": {}}"#).unwrap()),
            "duplicate field `weight_map`",
        ),
        (
            spoiled(|d| edit_index(d, |m| drop(m.insert("head.weight".into(), "../x".into())))),
            "\"../x\" is not the name of a file beside it",
        ),
        (
            spoiled(|d| edit_index(d, |m| drop(m.insert("more".into(), first.into())))),
            "model-00000.safetensors: lacks more, which model.safetensors.index.json places here",
        ),
        (
            spoiled(|d| edit_index(d, |m| drop(m.remove("embed.weight")))),
            "model-00000.safetensors: embed.weight is not listed for this shard",
        ),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found:?} lacks {expected:?}");
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_said_to_be_none() {
    use std::os::unix::fs::symlink;
    let (first, index) = ("model-00000.safetensors", "model.safetensors.index.json");
    let replace = |d: &Path, name: &str, with: &dyn Fn(&Path)| {
        std::fs::remove_file(d.join(name)).unwrap();
        with(&d.join(name));
    };
    let directory = |path: &Path| std::fs::create_dir(path).unwrap();
    let nowhere = |path: &Path| symlink("nowhere", path).unwrap();
    let itself = |path: &Path| symlink(path.file_name().unwrap(), path).unwrap();
    let endless = |path: &Path| symlink("/dev/zero", path).unwrap();
    for name in ["config.json", index, first] {
        for (with, expected) in [
            (&directory as &dyn Fn(&Path), "expected a file, found a directory"),
            (&nowhere, "No such file or directory"),
            (&itself, "Too many levels of symbolic links"),
            (&endless, "expected a file, found a pipe, socket or device"),
        ] {
            let found = spoiled(|d| replace(d, name, with));
            assert!(found.starts_with(name) && found.contains(expected), "{found:?} lacks {expected:?}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let found = Checkpoint::open(&file).unwrap_err().to_string();
    assert!(found.ends_with("file: expected a checkpoint directory, found a file"), "{found}");
    let none = Checkpoint::open(&dir.path().join("none")).unwrap_err().to_string();
    assert!(none.contains("none: No such file"), "{none}");
}
