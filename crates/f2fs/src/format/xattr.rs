//! Extended attributes: one stream of entries that starts inside the inode and goes on in the attribute node.
//!
//! The inode's last words (see [`super::inode::Layout`]) and the contents of the attribute node, one behind the other,
//! are one buffer: a header, then entries in the order of their making, then a zero word. An entry may lie across the
//! border (section 8). The caller joins and splits; here is the stream.

use moafs_vfs::stored::{acl_from_disk, acl_to_disk, index_of_space, space_of_index};
use moafs_vfs::types::{SetMode, XattrKey, XattrSpace};

use super::{put_u16, put_u32, u16_at, u32_at};

/// The magic number with which the stream starts.
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
    /// The number of the prefix (name space).
    pub index: u8,
    /// The name without its prefix.
    pub name: Box<[u8]>,
    /// The value, in the disk's form (it matters for access control lists).
    pub value: Vec<u8>,
}

impl Attribute {
    /// Returns the key, if it is in a name space that vfs knows.
    pub fn key(&self) -> Option<XattrKey> {
        Some(XattrKey { space: space_of_index(self.index)?, suffix: self.name.clone() })
    }

    /// Returns the value in the system call's form; `None` for an access control list that is not
    /// valid.
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

fn is_acl(index: u8) -> bool {
    matches!(space_of_index(index), Some(XattrSpace::AclAccess | XattrSpace::AclDefault))
}

/// Decodes a stream: the inode's part and, if there is an attribute node, its contents. A stream without a header has
/// never been written.
///
/// # Errors
/// A wrong magic number, or an entry beyond the end, in words.
pub fn decode(stream: &[u8]) -> Result<Vec<Attribute>, String> {
    let magic = stream.get(..4).map_or(0, |bytes| u32_at(bytes, 0));
    // The reference tools leave other bytes in the words of inodes that never had an attribute.
    let never_used = magic == 0 || stream.len() < NODE_BYTES;
    match magic {
        MAGIC => {}
        _ if never_used => return Ok(Vec::new()),
        _ => return Err(format!("their magic is {magic:#x}, not {MAGIC:#x}")),
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

/// Returns the stream of these attributes, filled with zeros to `capacity` bytes; `None` if they do
/// not fit. Without attributes it is all zeros.
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

/// Finds the attribute with this key.
pub fn find<'a>(attributes: &'a [Attribute], key: &XattrKey) -> Option<&'a Attribute> {
    attributes.iter().find(|attribute| attribute.is(index_of_space(key.space), &key.suffix))
}

/// Sets an attribute to a value in the system call's form, or removes it. A new value goes to the
/// end of the stream.
///
/// # Errors
/// `EEXIST` and `ENODATA` as `setxattr` and `removexattr` have them; `EINVAL` for an access control
/// list that is not valid.
pub fn set(attributes: &mut Vec<Attribute>, key: &XattrKey, value: Option<&[u8]>, mode: SetMode) -> Result<(), i32> {
    let index = index_of_space(key.space);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(index: u8, name: &[u8], value: &[u8]) -> Attribute {
        Attribute { index, name: name.into(), value: value.to_vec() }
    }

    fn key(full: &str) -> XattrKey {
        XattrKey::parse(full.as_bytes()).unwrap()
    }

    #[test]
    fn streams_have_the_formats_bytes() {
        let list = [attribute(1, b"foo", b"bar"), attribute(6, b"x", b"")];
        let stream = encode(&list, 48).unwrap();
        let right = [
            &[0x11, 0x20, 0xF5, 0xF2, 1, 0, 0, 0][..],
            &[0; 16],
            &[1, 3, 3, 0, b'f', b'o', b'o', b'b', b'a', b'r', 0, 0],
            &[6, 1, 0, 0, b'x', 0, 0, 0],
            &[0; 4],
        ];
        assert_eq!(stream, right.concat());
        assert_eq!(decode(&stream).unwrap(), list);
        assert_eq!(encode(&list, 47), None);
        assert_eq!(encode(&[], 8), Some(vec![0; 8]));
        assert_eq!(encode(&[attribute(1, b"n", &[0; 0x1_0000])], 1 << 20), None);
    }

    #[test]
    fn a_stream_that_was_never_written_is_empty() {
        assert_eq!(decode(&[]), Ok(vec![]));
        assert_eq!(decode(&[0; 200]), Ok(vec![]));
        assert_eq!(decode(&MAGIC.to_le_bytes()), Ok(vec![]));
        assert_eq!(decode(&[7; 200]), Ok(Vec::new()), "an inode without an attribute node");
        assert_eq!(decode(&[7; 4272]), Err("their magic is 0x7070707, not 0xf2f52011".into()));
    }

    #[test]
    fn entries_beyond_the_end_are_refused() {
        let mut stream = encode(&[attribute(1, b"foo", b"bar")], 40).unwrap();
        put_u16(&mut stream, 26, 10);
        assert_eq!(decode(&stream), Err("the entry at byte 24 runs beyond the end".into()));
    }

    #[test]
    fn setting_obeys_its_mode() {
        let mut list = Vec::new();
        let (a, b) = (key("user.a"), key("trusted.a"));
        assert_eq!(set(&mut list, &a, Some(b"1"), SetMode::Replace), Err(libc::ENODATA));
        assert_eq!(set(&mut list, &a, None, SetMode::Any), Err(libc::ENODATA));
        assert_eq!(set(&mut list, &a, Some(b"1"), SetMode::Create), Ok(()));
        assert_eq!(set(&mut list, &a, Some(b"2"), SetMode::Create), Err(libc::EEXIST));
        assert_eq!(set(&mut list, &b, Some(b"3"), SetMode::Any), Ok(()));
        assert_eq!(set(&mut list, &a, Some(b"4"), SetMode::Replace), Ok(()));
        assert_eq!(list, [attribute(4, b"a", b"3"), attribute(1, b"a", b"4")]);
        assert_eq!(find(&list, &a).and_then(Attribute::call_value), Some(b"4".to_vec()));
        assert_eq!(set(&mut list, &b, None, SetMode::Any), Ok(()));
        assert_eq!(find(&list, &b), None);
    }

    #[test]
    fn keys_of_every_space_come_back() {
        let mut list = Vec::new();
        let acl = acl_from_disk(&[1, 0, 0, 0]).unwrap();
        let names = ["user.x", "trusted.x", "security.x", "system.posix_acl_access", "system.posix_acl_default"];
        for full in names {
            set(&mut list, &key(full), Some(&acl), SetMode::Create).unwrap();
        }
        let seen: Vec<_> = list.iter().map(|a| a.key().unwrap().full()).collect();
        assert_eq!(seen, names.map(|full| full.as_bytes().to_vec()));
        assert_eq!(attribute(9, b"c", b"").key(), None);
    }

    #[test]
    fn access_control_lists_are_stored_in_the_disks_form() {
        let disk = [0x01, 0, 0, 0, 0x01, 0, 6, 0, 0x02, 0, 4, 0, 0xe8, 3, 0, 0];
        let key = key("system.posix_acl_access");
        let call = attribute(2, b"", &disk).call_value().unwrap();
        let mut list = Vec::new();
        set(&mut list, &key, Some(&call), SetMode::Any).unwrap();
        assert_eq!(find(&list, &key).unwrap().value, disk);
        assert_eq!(attribute(2, b"", &disk[..10]).call_value(), None);
        assert_eq!(set(&mut list, &key, Some(&call[..10]), SetMode::Any), Err(libc::EINVAL));
        assert_eq!(find(&list, &key).unwrap().value, disk);
    }

    fn any_attributes() -> impl Strategy<Value = Vec<Attribute>> {
        let name = prop::collection::vec(any::<u8>(), 1..30);
        let one = (1u8..8, name, prop::collection::vec(any::<u8>(), 0..60));
        let one = one.prop_map(|(index, name, value)| Attribute { index, name: name.into(), value });
        prop::collection::vec(one, 0..8)
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(attributes in any_attributes(), capacity in 0usize..800) {
            let needed: usize = attributes.iter().map(Attribute::bytes).sum::<usize>() + HEADER + TERMINATOR;
            match encode(&attributes, capacity) {
                Some(stream) => {
                    prop_assert_eq!(stream.len(), capacity);
                    prop_assert_eq!(decode(&stream).unwrap(), attributes);
                }
                None => prop_assert!(capacity < needed),
            }
        }

        #[test]
        fn hostile_streams_never_panic(
            mut bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300),
        ) {
            let _ = decode(&bytes);
            if bytes.len() >= 4 {
                put_u32(&mut bytes, 0, MAGIC);
                let _ = decode(&bytes);
            }
        }
    }
}
