//! The temporary name that an inode has in lost+found while its own name leads to another one.
//!
//! Without a journal an exchange of two names is several writes. The inode that loses its name first has a temporary
//! one until it has got that of the other, and the temporary name says what is under way: which inodes change places,
//! and between which names. By that recovery tells how far the exchange came from the names alone; link counts say
//! nothing of it, since either inode may have further names.

use super::InodeNo;
use super::renaming::Marks;

/// The first bytes of temporary names.
const PREFIX: &str = ".moafs-exchange-";

/// A name in a directory, as a temporary name tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameAt {
    /// The directory.
    pub dir: InodeNo,
    /// A hash of the name.
    pub hash: u32,
}

/// Two inodes that change places, or a directory that takes the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The inode that loses its name first: the temporary name leads to it.
    pub waiting: InodeNo,
    /// The name that it loses.
    pub taken: NameAt,
    /// The inode that this name leads to then.
    pub taker: InodeNo,
    /// The name that this one leaves: in an exchange it leads to the waiting inode in the end.
    pub left: NameAt,
}

impl Exchange {
    /// Returns the temporary name. It holds for the mount of these marks and the recovery of its crash: later it is a
    /// name like any other, which users may have come to rely on.
    pub fn temporary_name(self, marks: Marks) -> Vec<u8> {
        let Exchange { waiting, taken, taker, left } = self;
        let numbers = [marks.of_mount(), waiting.0, taken.dir.0, taken.hash, taker.0, left.dir.0, left.hash];
        let text: Vec<String> = numbers.iter().map(|number| format!("{number:x}")).collect();
        format!("{PREFIX}{}", text.join("-")).into_bytes()
    }

    /// Parses a name in lost+found; `None` of other names, and of temporary ones of other mounts.
    pub fn parse(name: &[u8], marks: Marks) -> Option<Exchange> {
        let text = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
        let numbers: Vec<u32> = text.split('-').map_while(|part| u32::from_str_radix(part, 16).ok()).collect();
        let &[mount, waiting, taken_dir, taken, taker, left_dir, left] = numbers.as_slice() else { return None };
        let exchange = Exchange {
            waiting: InodeNo(waiting),
            taken: NameAt { dir: InodeNo(taken_dir), hash: taken },
            taker: InodeNo(taker),
            left: NameAt { dir: InodeNo(left_dir), hash: left },
        };
        // One exchange has one name.
        (mount == marks.of_mount() && exchange.temporary_name(marks) == name).then_some(exchange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange() -> Exchange {
        let at = |dir, hash| NameAt { dir: InodeNo(dir), hash };
        let (taken, left) = (at(u32::MAX, 0), at(2, u32::MAX));
        Exchange { waiting: InodeNo(12), taken, taker: InodeNo(u32::MAX), left }
    }

    #[test]
    fn a_temporary_name_tells_of_its_exchange_to_its_mount_only() {
        let name = exchange().temporary_name(Marks::of_seed(7));
        assert_eq!(Exchange::parse(&name, Marks::of_seed(7)), Some(exchange()));
        assert_eq!(Exchange::parse(&name, Marks::of_seed(8)), None);
    }

    #[test]
    fn other_names_tell_of_none() {
        let marks = Marks::of_seed(7);
        let name = exchange().temporary_name(marks);
        let texts = ["", "file", PREFIX, ".moafs-exchange-1-2-3", ".moafs-exchange-7-c-2-0-d-2-+1"];
        let mut others: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        others.push([&name[..], b"-1"].concat());
        others.push([&name[..], b"x"].concat());
        others.push(name[..name.len() - 1].to_ascii_uppercase());
        others.push(vec![0xFF; 40]);
        for other in others {
            assert_eq!(Exchange::parse(&other, marks), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn every_temporary_name_is_short() {
        let most = InodeNo(u32::MAX);
        let at = NameAt { dir: most, hash: u32::MAX };
        let name =
            Exchange { waiting: most, taken: at, taker: most, left: at }.temporary_name(Marks::of_seed(u32::MAX));
        assert_eq!(name.len(), PREFIX.len() + 7 * 9 - 1);
    }
}
