//! Extended attributes: one stream of entries that starts inside the inode and goes on in the attribute node.
//!
//! The inode's last words (see [`super::inode::Layout`]) and the contents of the attribute node, one behind the other,
//! are one buffer: a header, then entries in the order of their making, then a zero word. An entry may lie across the
//! border (section 8). The caller joins and splits; here is the stream.

use moafs_vfs::types::{SetMode, XattrKey, XattrSpace};

use super::{put_u16, put_u32, u16_at, u32_at};

/// What the stream starts with.
pub const MAGIC: u32 = 0xF2F5_2011;
/// Bytes of the stream that an attribute node holds.
pub const NODE_BYTES: usize = super::node::FOOTER_OFFSET;
/// Bytes before the entries.
const HEADER: usize = 24;
/// Bytes of an entry before its name.
const ENTRY: usize = 4;
/// Bytes that end the entries.
const TERMINATOR: usize = 4;

/// An attribute as the format names it: a prefix's index, the rest of the name, the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Which prefix.
    pub index: u8,
    /// What follows the prefix.
    pub name: Box<[u8]>,
    /// The value, in the disk's form (it matters for access control lists).
    pub value: Vec<u8>,
}

impl Attribute {
    /// The key, if it is in a name space that vfs knows.
    pub fn key(&self) -> Option<XattrKey> {
        let space = match self.index {
            1 => XattrSpace::User,
            2 => XattrSpace::AclAccess,
            3 => XattrSpace::AclDefault,
            4 => XattrSpace::Trusted,
            6 => XattrSpace::Security,
            _ => return None,
        };
        Some(XattrKey { space, suffix: self.name.clone() })
    }

    /// The value in the system call's form; `None` for an access control list that is none.
    pub fn call_value(&self) -> Option<Vec<u8>> {
        if is_acl(self.index) { acl_from_disk(&self.value) } else { Some(self.value.clone()) }
    }

    fn bytes(&self) -> usize {
        (ENTRY + self.name.len() + self.value.len()).next_multiple_of(4)
    }

    fn is(&self, index: u8, name: &[u8]) -> bool {
        self.index == index && *self.name == *name
    }
}

fn index_of(space: XattrSpace) -> u8 {
    match space {
        XattrSpace::User => 1,
        XattrSpace::AclAccess => 2,
        XattrSpace::AclDefault => 3,
        XattrSpace::Trusted => 4,
        XattrSpace::Security => 6,
    }
}

fn is_acl(index: u8) -> bool {
    matches!(index, 2 | 3)
}

/// Decodes a stream: the inode's part and, if there is an attribute node, its contents. A stream without a header has
/// never been written.
///
/// # Errors
/// What is wrong, in words: the magic, or an entry beyond the end.
pub fn decode(stream: &[u8]) -> Result<Vec<Attribute>, String> {
    let magic = stream.get(..4).map_or(0, |bytes| u32_at(bytes, 0));
    if magic == 0 {
        return Ok(Vec::new());
    }
    if magic != MAGIC {
        return Err(format!("their magic is {magic:#x}, not {MAGIC:#x}"));
    }
    let mut attributes = Vec::new();
    let mut at = HEADER;
    while let Some(head) = stream.get(at..at + ENTRY).filter(|head| u32_at(head, 0) != 0) {
        let (name_len, value_len) = (usize::from(head[1]), usize::from(u16_at(head, 2)));
        let name_end = at + ENTRY + name_len;
        let contents = stream.get(at + ENTRY..name_end).zip(stream.get(name_end..name_end + value_len));
        let (name, value) = contents.ok_or_else(|| format!("the entry at byte {at} runs beyond the end"))?;
        attributes.push(Attribute { index: head[0], name: name.into(), value: value.to_vec() });
        at = (name_end + value_len).next_multiple_of(4);
    }
    Ok(attributes)
}

/// The stream of these attributes, filled with zeros to `capacity` bytes; `None` if they do not fit. Without attributes
/// it is all zeros.
pub fn encode(attributes: &[Attribute], capacity: usize) -> Option<Vec<u8>> {
    let mut stream = vec![0; capacity];
    if attributes.is_empty() {
        return Some(stream);
    }
    let representable = |a: &Attribute| a.name.len() <= 255 && a.value.len() <= usize::from(u16::MAX);
    let entries: usize = attributes.iter().map(Attribute::bytes).sum();
    if HEADER + entries + TERMINATOR > capacity || !attributes.iter().all(representable) {
        return None;
    }
    put_u32(&mut stream, 0, MAGIC);
    put_u32(&mut stream, 4, 1);
    let mut at = HEADER;
    for attribute in attributes {
        let Attribute { index, name, value } = attribute;
        let entry = &mut stream[at..at + attribute.bytes()];
        entry[0] = *index;
        entry[1] = name.len() as u8;
        put_u16(entry, 2, value.len() as u16);
        let contents = &mut entry[ENTRY..];
        contents[..name.len()].copy_from_slice(name);
        contents[name.len()..name.len() + value.len()].copy_from_slice(value);
        at += attribute.bytes();
    }
    Some(stream)
}

/// The attribute with this key.
pub fn find<'a>(attributes: &'a [Attribute], key: &XattrKey) -> Option<&'a Attribute> {
    attributes.iter().find(|attribute| attribute.is(index_of(key.space), &key.suffix))
}

/// Sets an attribute to a value in the system call's form, or removes it. What is set goes to the end.
///
/// # Errors
/// `EEXIST` and `ENODATA` as `setxattr` and `removexattr` have them; `EINVAL` for an access control list that is none.
pub fn set(attributes: &mut Vec<Attribute>, key: &XattrKey, value: Option<&[u8]>, mode: SetMode) -> Result<(), i32> {
    let index = index_of(key.space);
    let at = attributes.iter().position(|attribute| attribute.is(index, &key.suffix));
    match (at, value, mode) {
        (Some(_), Some(_), SetMode::Create) => return Err(libc::EEXIST),
        (None, Some(_), SetMode::Replace) | (None, None, _) => return Err(libc::ENODATA),
        _ => {}
    }
    let value = match value {
        Some(value) if is_acl(index) => Some(acl_to_disk(value).ok_or(libc::EINVAL)?),
        value => value.map(<[u8]>::to_vec),
    };
    if let Some(at) = at {
        attributes.remove(at);
    }
    attributes.extend(value.map(|value| Attribute { index, name: key.suffix.clone(), value }));
    Ok(())
}

/// Version of access control lists on the disk.
const ACL_DISK: u32 = 1;
/// Version of access control lists in system calls.
const ACL_SYSCALL: u32 = 2;
/// What system calls have where an entry names nobody.
const ACL_NOBODY: u32 = u32::MAX;

/// True if entries with this tag name a user or a group.
fn acl_names_somebody(tag: u16) -> bool {
    matches!(tag, 0x02 | 0x08)
}

/// An access control list from the disk, in the system call's form; `None` if it is none.
fn acl_from_disk(disk: &[u8]) -> Option<Vec<u8>> {
    let mut rest = disk.strip_prefix(&ACL_DISK.to_le_bytes())?;
    let mut out = ACL_SYSCALL.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (entry, id) = rest.split_at_checked(4)?;
        out.extend_from_slice(entry);
        rest = id;
        if acl_names_somebody(u16_at(entry, 0)) {
            let (id, behind) = rest.split_at_checked(4)?;
            out.extend_from_slice(id);
            rest = behind;
        } else {
            out.extend_from_slice(&ACL_NOBODY.to_le_bytes());
        }
    }
    Some(out)
}

/// An access control list from a system call, in the disk's form; `None` if it is none.
fn acl_to_disk(syscall: &[u8]) -> Option<Vec<u8>> {
    let entries = syscall.strip_prefix(&ACL_SYSCALL.to_le_bytes())?;
    if !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut out = ACL_DISK.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(8) {
        let names = acl_names_somebody(u16_at(entry, 0));
        out.extend_from_slice(&entry[..if names { 8 } else { 4 }]);
    }
    Some(out)
}
