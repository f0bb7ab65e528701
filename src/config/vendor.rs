//! The node's files of vendor data: opened once, with the configuration, and by who serves refused like it as a whole.
//!
//! In comes a directory; out come its files in order, and a sentence for each that cannot be used, with its path. A file
//! that was left out in silence would be missing from machines that have booted by the time somebody sees it. Refused:
//! what is no regular file, and more of them than [`FILES`] or [`BYTES`].

use std::fs::{self, File as Handle};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pve_imds_model::vendor::{File, Files};

/// Most files.
const FILES: usize = 256;

/// Most bytes, of one file and of all of them: a guest may ask 64 times at once, and what is joined is made for each.
const BYTES: u64 = 1 << 20;

/// Reads `dir`; an empty one is none. Only one that nobody has asked for may be missing. Beside the files that can be used,
/// one sentence for each complaint.
pub(super) fn read(dir: &str, may_be_missing: bool) -> (Files, Vec<String>) {
    if dir.is_empty() {
        return (Files::default(), Vec::new());
    }
    let complain = |why: String| vec![format!("vendor_data.dir: {why}")];
    let paths = match list(Path::new(dir)) {
        Ok(paths) => paths,
        Err(error) if error.kind() == io::ErrorKind::NotFound && may_be_missing => Vec::new(),
        Err(error) => return (Files::default(), complain(format!("cannot read {dir}: {error}"))),
    };
    if paths.len() > FILES {
        let many = format!("{dir} has {} files, and {FILES} are the most", paths.len());
        return (Files::default(), complain(many));
    }
    let (mut files, mut wrong, mut left) = (Vec::new(), Vec::new(), BYTES);
    for path in paths {
        match open(&path, &mut left) {
            Ok(file) => files.push(file),
            Err(why) => wrong.extend(complain(format!("{}: {why}", path.display()))),
        }
    }
    (Files::new(files), wrong)
}

/// What is in `dir` by name, without what editors and package managers leave beside files.
fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with('.') && !name.ends_with('~') && !name.contains(".dpkg-") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// One file, of which there may be `left` bytes.
fn open(path: &Path, left: &mut u64) -> Result<File, String> {
    // Before it is opened: to open a pipe is to wait for whoever writes into it.
    let about = fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    if !about.is_file() {
        return Err("is no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let read = Handle::open(path).and_then(|file| file.take(*left + 1).read_to_end(&mut bytes));
    let length = read.map_err(|error| format!("cannot be read: {error}"))? as u64;
    if about.len() > BYTES {
        return Err("is larger than 1 MiB".to_owned());
    }
    if length > *left {
        return Err("is too much: all files together may have 1 MiB".to_owned());
    }
    *left -= length;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    File::parse(&name, &bytes).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use pve_imds_model::vm::{Vm, VmId};

    use super::*;

    const GOOD: &str = "---\nall: true\n---\n#x\n";

    /// The files of `dir` that can be used, and what is wrong with the others.
    fn names(dir: &Path) -> (Vec<String>, Vec<String>) {
        let (files, wrong) = read(dir.to_str().unwrap(), false);
        let vm = Vm::new(VmId::new(106).unwrap());
        (files.of(&vm, None).map(|file| file.name().to_owned()).collect(), wrong)
    }

    #[test]
    fn files_are_read_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(names(dir.path()), (vec![], vec![]));
        for name in ["20-b", "10-a.yaml", ".10-a.yaml.swp", "10-a.yaml~", "10-a.yaml.dpkg-old"] {
            fs::write(dir.path().join(name), if name.ends_with(['b', 'l']) { GOOD } else { "" }).unwrap();
        }
        symlink("20-b", dir.path().join("30-c")).unwrap();
        assert_eq!(names(dir.path()), (["10-a.yaml", "20-b", "30-c"].map(str::to_owned).into(), vec![]));
    }

    #[test]
    fn a_directory_that_was_asked_for_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let missing = missing.to_str().unwrap();
        assert_eq!(read(missing, true), (Files::default(), vec![]));
        assert_eq!(read("", false), (Files::default(), vec![]));
        let (_, wrong) = read(missing, false);
        assert!(wrong.len() == 1 && wrong[0].starts_with(&format!("vendor_data.dir: cannot read {missing}: ")));
        assert!(!read("/dev/null", true).1.is_empty());
    }

    #[test]
    fn each_file_that_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("10-good"), GOOD).unwrap();
        fs::write(path("20-line"), "---\ntags: [web]\ntag: [db]\n---\n#x\n").unwrap();
        fs::write(path("30-large"), format!("{GOOD}{}", "x".repeat(1 << 20))).unwrap();
        fs::create_dir(path("40-dir")).unwrap();
        let _listener = UnixListener::bind(path("50-socket")).unwrap();
        symlink("nothing", path("60-link")).unwrap();
        let (good, wrong) = names(dir.path());
        assert_eq!(good, ["10-good"]);
        for (wrong, (name, why)) in wrong.iter().zip([
            ("20-line", "an unknown key (line 3, column 1); the header's keys are"),
            ("30-large", "is larger than 1 MiB"),
            ("40-dir", "is no regular file"),
            ("50-socket", "is no regular file"),
            ("60-link", "cannot be read: No such file"),
        ]) {
            let begins = format!("vendor_data.dir: {}: {why}", path(name).display());
            assert!(wrong.starts_with(&begins), "{wrong}");
        }
        assert_eq!(wrong.len(), 5);
    }

    #[test]
    fn there_is_a_bound_of_bytes_and_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let half = format!("{GOOD}{}", "x".repeat((1 << 19) - GOOD.len()));
        fs::write(dir.path().join("1"), &half).unwrap();
        fs::write(dir.path().join("2"), &half).unwrap();
        assert_eq!(names(dir.path()), (vec!["1".to_owned(), "2".to_owned()], vec![]));
        fs::write(dir.path().join("3"), GOOD).unwrap();
        let (_, wrong) = names(dir.path());
        assert!(
            wrong.len() == 1 && wrong[0].ends_with("3: is too much: all files together may have 1 MiB"),
            "{wrong:?}"
        );
        let dir = tempfile::tempdir().unwrap();
        (0..=FILES).for_each(|number| fs::write(dir.path().join(number.to_string()), GOOD).unwrap());
        let (files, wrong) = names(dir.path());
        assert!(files.is_empty() && wrong[0].ends_with("has 257 files, and 256 are the most"), "{wrong:?}");
    }
}
