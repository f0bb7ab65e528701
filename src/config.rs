//! The configuration: read once, at start, from a file and the environment, and with it the files of vendor data.
//!
//! In come a path and the environment; out comes a [`Checked`] or a [`ConfigError`] that names the file, the key and
//! the mend. Nothing else in the product reads either.

mod check;
mod layers;
mod schema;
mod shapes;
mod vendor;
mod words;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

pub use check::Checked;
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
    /// The file cannot be understood.
    #[error("{}", each(&.path.display().to_string(), .wrong))]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        wrong: Vec<LayerError>,
    },
    /// The environment cannot be understood.
    #[error("{}", each("environment", .0))]
    Environment(Vec<LayerError>),
    /// There is no such tree of configurations.
    #[error(
        "pve_dir: there is no directory {path}; it is Proxmox's cluster file system (/etc/pve) or a tree like it",
        path = .0.display()
    )]
    Tree(PathBuf),
    /// The values do not make sense.
    #[error("{}", .0.join("\n"))]
    Values(Vec<String>),
}

/// A line for each thing that is wrong.
fn each(place: &str, wrong: &[LayerError]) -> String {
    wrong.iter().map(|error| format!("{place}: {error}")).collect::<Vec<_>>().join("\n")
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
    if let Some(bytes) = &bytes {
        layers = layers.file(bytes).map_err(|wrong| ConfigError::File { path: path.clone(), wrong })?;
    }
    let ours = |name: &OsStr| name.to_string_lossy().starts_with(layers::PREFIX);
    for (name, value) in std::env::vars_os().filter(|(name, _)| ours(name)) {
        if name.to_str().is_none() || value.to_str().is_none() {
            let key = name.to_string_lossy().into_owned();
            return Err(ConfigError::Environment(vec![LayerError::Shape { key, expected: "UTF-8" }]));
        }
    }
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    // No option: builds for tests can be told when to die.
    #[cfg(debug_assertions)]
    let variables = variables.filter(|(name, _)| name != pve_imds_observability::KILL_AT);
    let layers = layers.environment(variables).map_err(ConfigError::Environment)?;
    let config = layers.config().map_err(|error| ConfigError::File { path: path.clone(), wrong: vec![error] })?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let vendor = vendor::read(&config.vendor_data.dir, layers.is_default("vendor_data.dir"));
    let checked = match (check::check(&layers, &config, host.trim()), vendor) {
        (Ok(checked), Ok(vendor)) => Checked { vendor: vendor.into(), ..checked },
        (checked, vendor) => {
            let wrong = [checked.err(), vendor.err()];
            return Err(ConfigError::Values(wrong.into_iter().flatten().flatten().collect()));
        }
    };
    Ok(Loaded { checked, layers, file: bytes.map(|_| path) })
}
