//! The blocks that a VM's Notes hold for us.

use std::fmt;

/// What the Notes say. `None`: no such block. `Some(Err(_))`: there is one and it is broken; half of it is never used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// `<!--#user-data`
    pub user_data: Option<Result<UserData, BlockError>>,
    /// `<!--#network-config`
    pub network_config: Option<Result<Vec<u8>, BlockError>>,
}

/// The text of a `user-data` block.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData {
    /// The secret set that `secrets=` names; with one, the text holds placeholders and is never served as it stands.
    pub secrets: Option<String>,
    /// The text, byte for byte.
    pub text: Vec<u8>,
}

/// User data may hold what its owner should not have written there: its text is never printed.
impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserData").field("secrets", &self.secrets).field("bytes", &self.text.len()).finish()
    }
}

/// Why a block cannot be used, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: placeholder")]
pub struct BlockError {
    /// Line of the Notes, from 1.
    pub line: usize,
}
