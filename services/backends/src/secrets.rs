//! User data with its secrets.
//!
//! In comes a VM; out goes the document that its block asks for, whole, or the [`RenderError`] that says what is in the way,
//! and beside it whose set was wanted ([`Rendering`]). Everything that decides whose secrets those are is read anew:
//! configuration, pools, settings, quorum. The steps are one function each, so that whoever looks for a fault takes the same
//! ones. Refused: to take longer than [`TOTAL`], to leave anything of a value behind, and to say anything of one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use pve_imds_model::fault::Outcome;
use pve_imds_model::notes::{BlockError, UserData};
use pve_imds_model::secrets::{
    Field, NoScope, Overflow, PathTemplate, Scope, ScopeInvalid, SecretPath, SetName, TagRules, Template, Unfilled,
};
use pve_imds_model::vm::{Vm, VmId};
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use crate::openbao::{Failure, FetchError, OpenBao, SecretSet, TOTAL, Value};
use crate::pve::{Inventory, Quorum, Seen, Unseen};
use crate::turns::FairTurns;

/// Bytes of the largest document: as many as a block may have.
pub const MAX_DOCUMENT: usize = 1 << 20;

/// Bytes of a block up to which it is taken apart and filled at once. Going through 32 KiB takes a tenth of a millisecond.
const LIGHT: usize = 32 << 10;

/// Stands in the place of a value, where none is to be shown.
const REDACTED: &str = "REDACTED";

/// How a node finds a VM's set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Where sets lie.
    pub path: PathTemplate,
    /// Which tags are a scope's.
    pub tags: TagRules,
    /// Nothing is rendered while this node is not part of the cluster's majority.
    pub require_quorum: bool,
}

/// Renders. Clones have the same store.
#[derive(Clone, Debug)]
pub struct Secrets {
    inventory: Arc<Inventory>,
    store: OpenBao,
    rules: Arc<Rules>,
    shown: bool,
}

/// What became of a VM's user data, and what was looked for.
#[derive(Debug)]
pub struct Rendering {
    /// Whose secrets the VM's are, as far as that was found out.
    pub scope: Option<Scope>,
    /// Which set its block names, as far as that was found out.
    pub set: Option<SetName>,
    /// The document.
    pub document: Result<Document, RenderError>,
}

/// User data with secrets in it. Wiped when it goes, and never printed.
pub struct Document(Zeroizing<Vec<u8>>);

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// What decides about it cannot be read.
    #[error(transparent)]
    Unseen(#[from] Unseen),
    /// Nor did it say so in time.
    #[error("whose secrets its are cannot be told within {TOTAL:?}: the cluster's file system does not answer")]
    Hangs,
    /// The block has been edited since the question came.
    #[error("its block was changed just now, and names no set any more")]
    Changed,
    /// The block is broken.
    #[error("its block: {0}")]
    Block(#[from] BlockError),
    /// This node is not part of the cluster's majority.
    #[error("this node has no quorum, and may not know who was taken out of a scope")]
    NoQuorum,
    /// The VM is in no scope.
    #[error(transparent)]
    NoScope(#[from] NoScope),
    /// It is in one that no path can be made of.
    #[error(transparent)]
    Scope(#[from] ScopeInvalid),
    /// The set cannot be had.
    #[error(transparent)]
    Fetch(#[from] Arc<FetchError>),
    /// The set lacks a field.
    #[error("the set has no field {}", named(.0))]
    FieldMissing(Field),
    /// A field is a number, a list or something else that is no text.
    #[error("the set's field {} is no text", named(.0))]
    FieldNotString(Field),
    /// The document would be too large.
    #[error(transparent)]
    Overflow(#[from] Overflow),
    /// The daemon ends.
    #[error("the daemon ends")]
    GivenUp,
}

/// A field's name, as whoever owns the VM wrote it: on one line, and not endless.
fn named(field: &Field) -> String {
    const SHOWN: usize = 64;
    let name = field.as_str();
    match name.char_indices().nth(SHOWN) {
        None => format!("{name:?}"),
        Some((end, _)) => format!("{:?}…", &name[..end]),
    }
}

impl RenderError {
    /// The word for it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Unseen(_) | Self::Hangs | Self::Changed => Outcome::ScopeUnreadable,
            Self::Block(error) => error.flaw.outcome(),
            Self::NoQuorum => Outcome::NoQuorum,
            Self::NoScope(why) => why.outcome(),
            Self::Scope(ScopeInvalid) => Outcome::ScopeInvalid,
            Self::Fetch(error) => error.outcome(),
            Self::FieldMissing(_) => Outcome::FieldMissing,
            Self::FieldNotString(_) => Outcome::FieldNotString,
            Self::Overflow(_) => Outcome::DocumentTooLarge,
            Self::GivenUp => Outcome::Deadline,
        }
    }

    /// What mends it.
    #[must_use]
    pub fn mend(&self) -> &'static str {
        match self {
            Self::Unseen(_) | Self::Hangs => {
                "is pve-cluster running, and the file whole? It is read again with the next request"
            }
            Self::Changed | Self::GivenUp => "the next request is answered",
            Self::Block(_) => "edit the VM's Notes",
            Self::NoQuorum => "bring the cluster's nodes back (pvecm status)",
            Self::NoScope(why) => why.mend(),
            Self::Scope(_) => "give the pool or the tag another name",
            Self::Fetch(error) => error.mend(),
            Self::FieldMissing(_) => "put the field into the set (bao kv patch), or mend its name in the VM's Notes",
            Self::FieldNotString(_) => "put it there as text (bao kv patch, field=value)",
            Self::Overflow(_) => "use fewer or smaller fields",
        }
    }
}

impl Secrets {
    /// Renders what `inventory`'s VMs ask for with what `store` has.
    #[must_use]
    pub fn new(inventory: Arc<Inventory>, store: OpenBao, rules: Rules) -> Self {
        Self { inventory, store, rules: rules.into(), shown: true }
    }

    /// The same, with a word in the place of each value.
    #[must_use]
    pub fn redacted(self) -> Self {
        Self { shown: false, ..self }
    }

    /// The user data of `vmid`, whose block names a set.
    pub async fn render(&self, vmid: VmId, turns: &FairTurns<VmId>) -> Rendering {
        let deadline = Instant::now() + TOTAL;
        let mut rendering = Rendering { scope: None, set: None, document: Err(RenderError::Hangs) };
        rendering.document = self.attempt(vmid, turns, deadline, (&mut rendering.scope, &mut rendering.set)).await;
        rendering
    }

    async fn attempt(
        &self,
        vmid: VmId,
        turns: &FairTurns<VmId>,
        deadline: Instant,
        (scope, set): (&mut Option<Scope>, &mut Option<SetName>),
    ) -> Result<Document, RenderError> {
        let seen = self.look(vmid, deadline).await?;
        let vm = Arc::clone(&seen.vm);
        let block = wanted(&vm)?;
        let set = set.insert(block.set.clone());
        let path = self.path(scope.insert(self.scope(&seen)?), set)?;
        let is_light = block.text.len() <= LIGHT;
        let of = Arc::clone(&vm);
        let fields = beside(is_light, vmid, turns, move || wanted(&of).map(|block| fields(block.text))).await??;
        let enough = |set: &SecretSet| fields.iter().all(|field| text(set, field).is_ok());
        let values = timeout_at(deadline, self.store.set(&path, enough)).await;
        let values = values.unwrap_or_else(|_| Err(Failure::TooLate.into()))?;
        let this = self.clone();
        let fill = move || this.fill(&Template::parse(wanted(&vm)?.text), &values);
        beside(is_light, vmid, turns, fill).await?
    }

    /// Everything that decides about a VM's secrets, read anew.
    ///
    /// # Errors
    /// [`RenderError::Unseen`], [`RenderError::Hangs`]
    pub async fn look(&self, vmid: VmId, deadline: Instant) -> Result<Seen, RenderError> {
        Ok(timeout_at(deadline, self.inventory.again(vmid)).await.map_err(|_| RenderError::Hangs)??)
    }

    /// Whose secrets the VM's are.
    ///
    /// # Errors
    /// [`RenderError::NoQuorum`], [`RenderError::NoScope`]
    pub fn scope(&self, seen: &Seen) -> Result<Scope, RenderError> {
        if self.rules.require_quorum && seen.quorum == Quorum::Lacks {
            return Err(RenderError::NoQuorum);
        }
        let Rules { path, tags, .. } = &*self.rules;
        Ok(Scope::of(path.kind(), &seen.vm, seen.pool.as_ref(), &seen.datacenter, tags)?)
    }

    /// Where its set lies.
    ///
    /// # Errors
    /// [`RenderError::Scope`]
    pub fn path(&self, scope: &Scope, set: &SetName) -> Result<SecretPath, RenderError> {
        Ok(self.rules.path.path(scope, set)?)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &OpenBao {
        &self.store
    }

    /// The document.
    ///
    /// # Errors
    /// [`RenderError::FieldMissing`], [`RenderError::FieldNotString`], [`RenderError::Overflow`]
    pub fn fill(&self, template: &Template<'_>, set: &SecretSet) -> Result<Document, RenderError> {
        let mut filled = template.fill(MAX_DOCUMENT, |field| text(set, field));
        // Only then: whether it can be had at all is up to the values.
        if !self.shown && filled.is_ok() {
            filled = template.fill(MAX_DOCUMENT, |field| text(set, field).map(|_| REDACTED));
        }
        filled.map(Document).map_err(|unfilled| match unfilled {
            Unfilled::Value(error) => error,
            Unfilled::Overflow(overflow) => overflow.into(),
        })
    }
}

/// A block that asks for secrets.
#[derive(Clone, Copy)]
pub struct Wanted<'v> {
    /// The set it names.
    pub set: &'v SetName,
    /// Its text, with places in it.
    pub text: &'v [u8],
}

/// What the VM's block asks for.
///
/// # Errors
/// [`RenderError::Block`], [`RenderError::Changed`]
pub fn wanted(vm: &Vm) -> Result<Wanted<'_>, RenderError> {
    match &vm.notes.user_data {
        Some(Ok(UserData { secrets: Some(set), text })) => Ok(Wanted { set, text }),
        Some(Ok(UserData { secrets: None, .. })) | None => Err(RenderError::Changed),
        Some(Err(error)) => Err(error.clone().into()),
    }
}

/// The fields that a text has places for.
fn fields(text: &[u8]) -> BTreeSet<Field> {
    Template::parse(text).fields().into_iter().cloned().collect()
}

/// What `work` makes: at once if that is light, else beside the runtime, in its turn.
async fn beside<T: Send + 'static>(
    is_light: bool,
    vmid: VmId,
    turns: &FairTurns<VmId>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RenderError> {
    if is_light { Ok(work()) } else { turns.run(vmid, work).await.map_err(|_| RenderError::GivenUp) }
}

/// The value of a field, if it can be used.
fn text<'s>(set: &'s SecretSet, field: &Field) -> Result<&'s str, RenderError> {
    match set.field(field.as_str()) {
        Some(Value::Text(text)) => Ok(text),
        Some(Value::Other) => Err(RenderError::FieldNotString(field.clone())),
        None => Err(RenderError::FieldMissing(field.clone())),
    }
}

// === impl Wanted ===

/// The text is the owner's.
impl fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wanted").field("set", &self.set).finish_non_exhaustive()
    }
}

// === impl Document ===

impl AsRef<[u8]> for Document {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document").field("bytes", &self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests;
