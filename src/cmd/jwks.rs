//! `jwks`: the key set, as those who verify are shown it, for those who take it there by hand.
//!
//! In comes the tree; out goes the set. A node that is missing from it is named on standard error with its file.

use std::io::{Write, stderr, stdout};

use anyhow::Context;
use serde_json::Value;

use super::inventory;
use crate::config::Checked;

pub(super) fn run(checked: &Checked) -> anyhow::Result<()> {
    let inventory = inventory(checked)?;
    let tokens = inventory.token_keys();
    for doubt in tokens.doubts().iter() {
        writeln!(stderr(), "warning: a node's key may be missing: {doubt}")?;
    }
    let set = tokens.set();
    anyhow::ensure!(
        !set.is_empty(),
        "there is no key that identity tokens could be checked with: below {}/nodes each node has one in pve-ssl.pem, \
         which `pvecm updatecerts` makes there; it takes root to read them",
        checked.pve_dir.display()
    );
    let set: Value = serde_json::from_slice(&set.bytes()).context("the key set is no JSON")?;
    writeln!(stdout(), "{set:#}")?;
    Ok(())
}
