//! Measured figures: nothing is asserted of them here, they are kept in `target/figures` and shown with `--nocapture`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// One file of figures, begun anew by each run.
#[derive(Debug)]
pub struct Figures(Mutex<File>);

impl Figures {
    /// `target/figures/<name>.txt`; its first line says what it is about.
    pub fn begin(name: &str, about: &str) -> Self {
        let dir = Self::dir();
        fs::create_dir_all(&dir).unwrap();
        let file = File::create(dir.join(format!("{name}.txt"))).unwrap();
        let figures = Self(Mutex::new(file));
        let load = fs::read_to_string("/proc/loadavg").unwrap();
        let processors = std::thread::available_parallelism().unwrap();
        figures.say(&format!("{about} ({processors} processors, load {})", load.split(' ').next().unwrap()));
        figures
    }

    /// Beside the build that these tests belong to.
    pub fn dir() -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("figures")
    }

    /// One line.
    pub fn say(&self, line: &str) {
        println!("{line}");
        writeln!(self.0.lock().unwrap(), "{line}").unwrap();
    }
}

/// Milliseconds, as figures have them.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The value below which this share of sorted values is; the last one for 1.
pub fn quantile<T: Copy>(sorted: &[T], share: f64) -> T {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length is an index")]
    let at = (share * (sorted.len() - 1) as f64).round() as usize;
    sorted[at]
}
