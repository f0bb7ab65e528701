//! The configuration: read once, at start, from a file and the environment, and with it the files of vendor data.
//!
//! In come a path and the environment; out comes a [`Checked`] or a [`ConfigError`] that names the file, the key and
//! the mend, of everything that is wrong at once. Nothing else in the product reads either.

mod check;
mod layers;
mod schema;
mod shapes;
mod vendor;
mod words;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

pub use check::{Checked, SecretStore};
pub use layers::{LayerError, Layers, Setting, Source};
pub use schema::Config;
pub use words::{Kinds, KindsError};

/// Read if no other file is named, and may be absent.
pub const DEFAULT_FILE: &str = "/etc/pve-imds/config.yaml";

/// Why there is no configuration to run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The named file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no such tree of configurations.
    #[error(
        "pve_dir: there is no directory {path}; it is Proxmox's cluster file system (/etc/pve) or a tree like it",
        path = .0.display()
    )]
    Tree(PathBuf),
    /// What file, environment and files of vendor data say cannot be understood, or makes no sense: a line for each
    /// thing.
    #[error("{}", .0.join("\n"))]
    Wrong(Vec<String>),
}

/// A line for each thing that is wrong in one place.
fn each(place: &str, wrong: &[LayerError]) -> Vec<String> {
    wrong.iter().map(|error| format!("{place}: {error}")).collect()
}

/// A configuration and where each value is from.
#[derive(Debug)]
pub struct Loaded {
    /// To run.
    pub checked: Checked,
    /// To show.
    pub layers: Layers,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// What of the vendor data cannot be used, a line for each thing; the rest of it is there.
    unusable: Vec<String>,
}

impl Loaded {
    /// To serve: a file that was left out would be missing from machines for good.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`] of the vendor data.
    pub fn whole(self) -> Result<Self, ConfigError> {
        if self.unusable.is_empty() { Ok(self) } else { Err(ConfigError::Wrong(self.unusable)) }
    }

    /// To look at: what has to be left out, and what there is without it.
    #[must_use]
    pub fn in_part(self) -> (Vec<String>, Checked) {
        (self.unusable, self.checked)
    }
}

/// Reads `path`, or [`DEFAULT_FILE`] if that exists, and the environment.
///
/// # Errors
/// See [`ConfigError`].
pub fn load(path: Option<&Path>) -> Result<Loaded, ConfigError> {
    let named = path.is_some();
    let path = path.unwrap_or_else(|| Path::new(DEFAULT_FILE)).to_owned();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !named => None,
        Err(source) => return Err(ConfigError::Read { path, source }),
    };
    let mut layers = Layers::defaults();
    let in_file = bytes.as_ref().map(|bytes| layers.file(bytes)).unwrap_or_default();
    let ours = |name: &OsStr| name.to_string_lossy().starts_with(layers::PREFIX);
    let odd =
        |(name, value): &(OsString, OsString)| ours(name) && (name.to_str().is_none() || value.to_str().is_none());
    let odd = std::env::vars_os()
        .filter(odd)
        .map(|(name, _)| LayerError::Shape { key: name.to_string_lossy().into_owned(), expected: "UTF-8" });
    let mut in_environment: Vec<LayerError> = odd.collect();
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    // No option: builds for tests can be told when to die.
    #[cfg(debug_assertions)]
    let variables = variables.filter(|(name, _)| name != pve_imds_observability::KILL_AT);
    in_environment.extend(layers.environment(variables));
    let mut wrong = each(&path.display().to_string(), &in_file);
    wrong.extend(each("environment", &in_environment));
    // Of a file that is not understood at all nobody knows what it would have said instead.
    if in_file.iter().any(LayerError::is_of_the_whole) {
        return Err(ConfigError::Wrong(wrong));
    }
    // What is wrong has its built-in value here, which is right: only what is wrong besides is added.
    let mut unusable = Vec::new();
    let checked = match layers.config() {
        Ok(config) => {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let (files, complaints) = vendor::read(&config.vendor_data.dir, layers.is_default("vendor_data.dir"));
            unusable = complaints;
            match check::check(&layers, &config, host.trim()) {
                Ok(checked) => Some(Checked { vendor: files.into(), ..checked }),
                Err(complaints) => {
                    wrong.extend(complaints);
                    None
                }
            }
        }
        Err(error) => {
            wrong.extend(each(&path.display().to_string(), &[error]));
            None
        }
    };
    match checked {
        Some(checked) if wrong.is_empty() => Ok(Loaded { checked, layers, file: bytes.map(|_| path), unusable }),
        _ => Err(ConfigError::Wrong([wrong, unusable].concat())),
    }
}
