//! What a person can do about it, in words that can be copied into a shell.
//!
//! In come paths and errors, out come commands and half sentences; nothing is changed. Whoever reads an error reads its
//! end: what the kernel said stands before the mend and never behind it.

use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What the error and its causes say, each once.
pub(crate) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text.trim_end().to_owned()
}

/// The command that removes what stands at `path`, whatever that is: not ours, so we leave it to whoever reads this.
#[must_use]
pub fn removal(path: &Path) -> String {
    let quoted = quoted(path);
    let device = |path: &Path| fs::symlink_metadata(path).map(|about| about.dev());
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => {
            let mounted = path.parent().is_some_and(|above| device(above).is_ok_and(|device| device != about.dev()));
            let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
            match (mounted, empty) {
                (true, _) => format!("umount {quoted} && rmdir {quoted}"),
                (false, true) => format!("rmdir {quoted}"),
                (false, false) => format!("rm -r {quoted}"),
            }
        }
        _ => format!("rm {quoted}"),
    }
}

/// As a shell takes it for one word.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:+,@".contains(&byte);
    if text.bytes().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_kind_of_thing_goes_by_its_own_command() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("file"), "").unwrap();
        fs::create_dir(at("empty")).unwrap();
        fs::create_dir_all(at("full/of")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        std::os::unix::fs::symlink("empty", at("to-dir")).unwrap();
        fs::write(at("it's a file"), "").unwrap();
        let here = home.path().display();
        for (name, command) in [
            ("file", format!("rm {here}/file")),
            ("gone", format!("rm {here}/gone")),
            ("link", format!("rm {here}/link")),
            ("to-dir", format!("rm {here}/to-dir")),
            ("empty", format!("rmdir {here}/empty")),
            ("full", format!("rm -r {here}/full")),
            ("it's a file", format!(r"rm '{here}/it'\''s a file'")),
        ] {
            assert_eq!(removal(&at(name)), command);
        }
        assert_eq!(removal(Path::new("/proc")), "umount /proc && rmdir /proc");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the map was refused{}", if .0.is_some() { ": No" } else { "" })]
    struct Outer(#[source] Option<Inner>);

    #[derive(Debug, thiserror::Error)]
    #[error("No")]
    struct Inner(#[source] io::Error);

    #[test]
    fn each_cause_is_said_once() {
        let inner = Inner(io::Error::from_raw_os_error(1));
        assert_eq!(causes(&Outer(Some(inner))), "the map was refused: No: Operation not permitted (os error 1)");
        assert_eq!(causes(&Outer(None)), "the map was refused");
    }
}
