//! The command line: what may be asked for. Shapes only; [`crate::cmd`] does it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pve_imds_model::chain;
use pve_imds_observability::say_error;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::cmd;
use crate::config::ConfigError;

/// The instance metadata service of a Proxmox VE node: every guest asks http://169.254.169.254 and gets its own
/// metadata.
#[derive(Debug, Parser)]
#[command(
    name = "pve-imds",
    version,
    after_help = "Exit status: 0 done, 1 failed, 64 usage or configuration.\n\
                  Every option of the configuration can also be set by an environment variable: \
                  datapath.pin_dir is PVE_IMDS_DATAPATH_PIN_DIR."
)]
pub struct Cli {
    /// Configuration file [default: /etc/pve-imds/config.yaml, if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What to do [default: serve]
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the guests of this node until SIGTERM
    Serve,
    /// The configuration: check it, show it
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print what a VM would get, byte for byte, through the whole stack; needs no daemon
    View(View),
    /// Say what keeps secrets from a VM's user data: each link of the chain, up to the first that is broken, and its mend;
    /// needs no daemon
    Doctor(Doctor),
    /// Print a VM's configuration as it is understood, as JSON
    Inspect(Inspect),
    /// Print the key set that identity tokens are checked with, as JSON; needs no daemon
    Jwks,
    /// Print what a guest has said of its administrator's password; the daemon that serves here is asked
    Password(Password),
    /// List guest interfaces: whose they are and whether they are guarded
    Taps(Taps),
    /// The kernel programs that keep everyone else from speaking as the metadata address
    #[command(subcommand)]
    Guard(GuardCommand),
}

/// `config`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Exit 0 if the configuration can be run and there is a pve_dir, 64 and say why not otherwise
    Check,
    /// Print every option in effect and where its value is from
    Show,
}

/// `view`
#[derive(Debug, clap::Args)]
pub struct View {
    /// Which VM, by its VMID
    pub vmid: String,
    /// Which path
    #[arg(default_value = "/nocloud/user-data")]
    pub path: String,
    /// Print the status line and the headers too
    #[arg(short, long)]
    pub include: bool,
    /// Say where each of the VM's answers comes from, instead of answering
    #[arg(long, conflicts_with_all = ["path", "include", "reveal"])]
    pub sources: bool,
    /// Print secrets as the VM gets them, and not REDACTED in their place
    #[arg(long)]
    pub reveal: bool,
    /// Ask on this NIC [default: the VM's first]
    #[arg(long, value_name = "N")]
    pub nic: Option<u8>,
}

/// `doctor`
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Which VM, by its VMID
    pub vmid: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `inspect`
#[derive(Debug, clap::Args)]
pub struct Inspect {
    /// A VMID, looked up under pve_dir, or a file ("-": standard input)
    #[arg(value_name = "FILE|VMID")]
    pub what: String,
}

/// `password`
#[derive(Debug, clap::Args)]
pub struct Password {
    /// Which VM, by its VMID
    pub vmid: String,
}

/// `taps`
#[derive(Debug, clap::Args)]
pub struct Taps {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `guard`
#[derive(Debug, Subcommand)]
pub enum GuardCommand {
    /// Guard interfaces although nobody serves: their guests get silence. Reads no configuration and refuses --config;
    /// beside a daemon it changes nothing of what that guards
    #[command(override_usage = "pve-imds guard attach [OPTIONS] <IFNAME | --all>")]
    Attach {
        /// Which interface, named as Proxmox names guests' interfaces
        #[arg(value_name = "IFNAME", required_unless_present = "all", conflicts_with = "all")]
        name: Option<String>,
        /// Every guest interface there is
        #[arg(long)]
        all: bool,
        /// With --all: link kinds that may be a guest's interface
        #[arg(long, value_name = "KINDS", env = "PVE_IMDS_DATAPATH_ACCEPT_KINDS", default_value = "tun")]
        accept_kinds: String,
        /// Where links are pinned
        #[command(flatten)]
        pins: PinDir,
        /// Stands before every other command; here it is refused, and not listed
        #[arg(long, hide = true, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// List guarded interfaces, the programs on them, and what they dropped
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Where links are pinned
        #[command(flatten)]
        pins: PinDir,
    },
    /// Take every program off: from then on anyone on a bridge can speak as the metadata address
    Remove {
        /// Where links are pinned
        #[command(flatten)]
        pins: PinDir,
    },
}

/// Where the guard is.
#[derive(Debug, clap::Args)]
pub struct PinDir {
    /// Directory of the pinned links; without it the daemon that serves says, else the configuration, where one is read,
    /// else it is /run/pve-imds/bpf
    #[arg(long = "pin-dir", value_name = "DIR", env = "PVE_IMDS_DATAPATH_PIN_DIR")]
    pub pin_dir: Option<PathBuf>,
}

/// EX_USAGE (sysexits.h): usage or configuration.
const USAGE: u8 = 64;

/// What this process knows is in nobody's core dump, and no debugger of another user's. The limit is for where dumps are
/// files (core(5)); where a program gets them only the other counts (`PR_SET_DUMPABLE`, prctl(2)). Neither can fail for
/// whoever asks for less.
fn keep_to_ourselves() {
    _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Reads the arguments, does what they say, and says what went wrong on standard error.
#[must_use]
pub fn main() -> ExitCode {
    keep_to_ourselves();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if !(error.use_stderr() && say_error(&error.render().to_string())) {
                // Nobody is left to tell if even this cannot be written.
                let _ = error.print();
            }
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cmd::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error)
            if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            // `pve-imds view 100 | head`: the reader has what it wanted.
            ExitCode::SUCCESS
        }
        Err(error) => {
            let why = chain(error.as_ref());
            if !say_error(&why) {
                eprintln!("pve-imds: {why}");
            }
            let usage = error.downcast_ref::<ConfigError>().is_some() || error.downcast_ref::<cmd::Usage>().is_some();
            ExitCode::from(if usage { USAGE } else { 1 })
        }
    }
}
