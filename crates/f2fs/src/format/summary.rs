//! Segment summaries (section 3.5): for each block of a segment, the node that points to it.
//!
//! A summary block lies in the SSA once its segment is closed; the summaries of the six open segments lie in the
//! checkpoint pack. There, the journal area of two of them holds the newest NAT and SIT entries.

use super::nat::{NAT_ENTRY_BYTES, NatEntry};
use super::sit::{SIT_ENTRY_BYTES, SitEntry};
use super::{BLOCK, Damage, Nid, SEGMENT_BLOCKS, Segno, Structure, put_u16, put_u32, u16_at, u32_at};

/// NAT entries that a journal can hold.
pub const NAT_JOURNAL_MAX: usize = 38;
/// SIT entries that a journal can hold.
pub const SIT_JOURNAL_MAX: usize = 6;
/// Bytes of a summary entry.
pub(crate) const ENTRY_BYTES: usize = 7;
/// Offset of the journal area in a summary block.
pub(crate) const JOURNAL_AT: usize = SEGMENT_BLOCKS * ENTRY_BYTES;
/// Bytes of the journal area.
pub(crate) const JOURNAL_BYTES: usize = 507;
/// Offset of the footer: the kind of segment, and a checksum that no reader checks.
pub(crate) const FOOTER_AT: usize = JOURNAL_AT + JOURNAL_BYTES;
/// Bytes of the footer.
pub(crate) const FOOTER_BYTES: usize = 5;
const _: () = assert!(FOOTER_AT + FOOTER_BYTES == BLOCK);
const _: () = assert!(2 + NAT_JOURNAL_MAX * (4 + NAT_ENTRY_BYTES) <= JOURNAL_BYTES);
const _: () = assert!(2 + SIT_JOURNAL_MAX * (4 + SIT_ENTRY_BYTES) <= JOURNAL_BYTES);

/// The owner of a block: the node that points to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SummaryEntry {
    /// The node that holds the block's address; for a node's block, the node itself.
    pub nid: Nid,
    /// The version of that node's NAT entry when the block was written; 0 for a node's block.
    pub version: u8,
    /// The index of the address in the node, counted from its first usable one; 0 for a node's
    /// block.
    pub offset: u16,
}

impl SummaryEntry {
    pub(crate) fn decode(bytes: &[u8]) -> SummaryEntry {
        SummaryEntry { nid: Nid(u32_at(bytes, 0)), version: bytes[4], offset: u16_at(bytes, 5) }
    }

    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        put_u32(bytes, 0, self.nid.0);
        bytes[4] = self.version;
        put_u16(bytes, 5, self.offset);
    }
}

/// The owner of each block of a segment.
#[derive(Clone, PartialEq, Eq)]
pub struct Summary {
    /// One entry for each block; those of blocks never written mean nothing.
    pub entries: [SummaryEntry; SEGMENT_BLOCKS],
}

impl std::fmt::Debug for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.entries.iter().filter(|entry| **entry != SummaryEntry::default()).count();
        write!(f, "Summary({used} entries)")
    }
}

impl Default for Summary {
    fn default() -> Summary {
        Summary { entries: [SummaryEntry::default(); SEGMENT_BLOCKS] }
    }
}

impl Summary {
    /// Reads a summary block (4096 bytes), and whether it says that its segment holds nodes.
    pub fn decode(block: &[u8]) -> (Summary, bool) {
        let entry = |at: usize| SummaryEntry::decode(&block[at * ENTRY_BYTES..]);
        (Summary { entries: std::array::from_fn(entry) }, block[FOOTER_AT] == 1)
    }

    /// Encodes the summary block of a segment of nodes, or of data; its journal area is empty.
    pub fn encode(&self, is_node: bool) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        for (bytes, entry) in block.chunks_exact_mut(ENTRY_BYTES).zip(&self.entries) {
            entry.encode(bytes);
        }
        block[FOOTER_AT] = u8::from(is_node);
        block
    }
}

/// Reads the journal of NAT entries in checkpoint pack `pack`.
pub(crate) fn decode_nat_journal(area: &[u8], nid_max: u32, pack: Structure) -> Result<Vec<(Nid, NatEntry)>, Damage> {
    let decode = |slot: &[u8]| {
        let nid = u32_at(slot, 0);
        if nid >= nid_max {
            return Err(pack.damage(None, format!("the NAT journal names node {nid}, but there are only {nid_max}")));
        }
        Ok((Nid(nid), NatEntry::decode(&slot[4..])))
    };
    journal_slots(area, "NAT", NAT_JOURNAL_MAX, 4 + NAT_ENTRY_BYTES, pack)?.map(decode).collect()
}

/// Reads the journal of SIT entries in checkpoint pack `pack`.
pub(crate) fn decode_sit_journal(
    area: &[u8],
    segments: u32,
    pack: Structure,
) -> Result<Vec<(Segno, SitEntry)>, Damage> {
    let decode = |slot: &[u8]| {
        let segno = Segno(u32_at(slot, 0));
        if segno.0 >= segments {
            let problem = format!("the SIT journal names segment {segno}, but there are only {segments}");
            return Err(pack.damage(None, problem));
        }
        Ok((segno, SitEntry::decode(&slot[4..], segno)?))
    };
    journal_slots(area, "SIT", SIT_JOURNAL_MAX, 4 + SIT_ENTRY_BYTES, pack)?.map(decode).collect()
}

fn journal_slots<'a>(
    area: &'a [u8],
    name: &str,
    max: usize,
    bytes: usize,
    pack: Structure,
) -> Result<impl Iterator<Item = &'a [u8]> + use<'a>, Damage> {
    let count = usize::from(u16_at(area, 0));
    if count > max {
        let problem = format!("the {name} journal counts {count} entries, but holds at most {max}");
        return Err(pack.damage(None, problem));
    }
    Ok(area[2..].chunks_exact(bytes).take(count))
}

/// Stores a journal of at most [`NAT_JOURNAL_MAX`] entries.
pub(crate) fn encode_nat_journal(journal: &[(Nid, NatEntry)], area: &mut [u8]) {
    assert!(journal.len() <= NAT_JOURNAL_MAX, "{} entries in the NAT journal", journal.len());
    put_u16(area, 0, journal.len() as u16);
    for (slot, (nid, entry)) in area[2..].chunks_exact_mut(4 + NAT_ENTRY_BYTES).zip(journal) {
        put_u32(slot, 0, nid.0);
        entry.encode(&mut slot[4..]);
    }
}

/// Stores a journal of at most [`SIT_JOURNAL_MAX`] entries.
pub(crate) fn encode_sit_journal(journal: &[(Segno, SitEntry)], area: &mut [u8]) {
    assert!(journal.len() <= SIT_JOURNAL_MAX, "{} entries in the SIT journal", journal.len());
    put_u16(area, 0, journal.len() as u16);
    for (slot, (segno, entry)) in area[2..].chunks_exact_mut(4 + SIT_ENTRY_BYTES).zip(journal) {
        put_u32(slot, 0, segno.0);
        entry.encode(&mut slot[4..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_comes_back() {
        let mut summary = Summary::default();
        for (at, entry) in summary.entries.iter_mut().enumerate() {
            *entry = SummaryEntry { nid: Nid(at as u32 * 77), version: at as u8, offset: at as u16 ^ 0x155 };
        }
        for is_node in [false, true] {
            let block = summary.encode(is_node);
            assert_eq!(block.len(), BLOCK);
            assert_eq!(Summary::decode(&block), (summary.clone(), is_node));
        }
    }

    #[test]
    fn journals_that_cannot_be_are_named() {
        let mut area = [0; JOURNAL_BYTES];
        let pack = Structure::Checkpoint(2);
        let nat = |area: &[u8]| decode_nat_journal(area, 100, pack);
        let sit = |area: &[u8]| decode_sit_journal(area, 100, pack);
        put_u16(&mut area, 0, 39);
        assert!(nat(&area).unwrap_err().problem.contains("39"));
        assert!(sit(&area).unwrap_err().problem.contains("39"));
        put_u16(&mut area, 0, 1);
        put_u32(&mut area, 2, 100);
        assert!(nat(&area).unwrap_err().problem.contains("node 100"));
        assert!(sit(&area).unwrap_err().problem.contains("segment 100"));
        put_u32(&mut area, 2, 99);
        assert_eq!(nat(&area), Ok(vec![(Nid(99), NatEntry::default())]));
        put_u16(&mut area, 6, 5);
        assert_eq!(sit(&area).unwrap_err().structure, Structure::Sit(Segno(99)));
    }
}
