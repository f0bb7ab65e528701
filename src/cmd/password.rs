//! `password`: what a guest has said of its administrator's password, told by the daemon that has heard it.

use std::io::{IsTerminal, Write, stdout};

use anyhow::{Context, bail};
use pve_imds_model::vm::VmId;

use crate::app::claim::Holder;
use crate::app::control::{Question, Refusal, ask};

pub(super) fn run(vmid: VmId) -> anyhow::Result<()> {
    match Holder::ask().context("whether a daemon serves here is not known")? {
        Holder::Nobody => {
            bail!("nobody serves here, and what guests say of their passwords is kept in the daemon's memory alone")
        }
        Holder::Hidden => bail!("only root is told what guests say of their passwords; run this as root"),
        Holder::Daemon(_) => {}
    }
    let answer = ask(Question::Password(vmid)).context("the daemon that serves here does not answer")?;
    let bytes = answer.map_err(|refusal| match refusal {
        Refusal::UnknownQuestion => anyhow::anyhow!("the daemon that serves here is of another version and does not know this question"),
        Refusal::VmUnknown => anyhow::anyhow!("VM {vmid}: the daemon knows no configuration of it"),
        Refusal::NothingSaid => anyhow::anyhow!(
            "VM {vmid} has said no password; one that it said on another node, or before the daemon started, is forgotten"
        ),
    })?;
    let mut out = stdout().lock();
    if out.is_terminal() {
        // They are a guest's bytes, and terminals take some for orders.
        writeln!(out, "{}", bytes.escape_ascii())?;
    } else {
        out.write_all(&bytes)?;
    }
    out.flush()?;
    Ok(())
}
