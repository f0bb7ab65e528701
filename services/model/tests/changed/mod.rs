//! Texts that are nearly a given one.

/// Has each text looked at that is this one but for one byte, whatever that byte becomes.
pub(crate) fn each_byte(whole: &[u8], mut look: impl FnMut(&[u8])) {
    let mut changed = whole.to_vec();
    for at in 0..whole.len() {
        for byte in 0..=255 {
            changed[at] = byte;
            look(&changed);
        }
        changed[at] = whole[at];
    }
}
