//! The UUID that `mkfs -U` and `tune -U` give a volume, with the words of mke2fs(8) and tune2fs(8).

use moafs_runtime::{Live, Timestamp};
use uuid::{Builder, Uuid};

/// Intervals of 100 ns between 1582-10-15, where times in UUIDs begin, and 1970.
const TICKS_TO_1970: u64 = 0x01b2_1dd2_1381_4000;

/// Parses a UUID, or `random`, `time` (made of the time and a random node), or `clear` for none.
pub(crate) fn parse(text: &str) -> Result<Uuid, String> {
    match text {
        "random" => Ok(Uuid::new_v4()),
        "time" => Ok(of_time(Live::new().timestamp())),
        "clear" => Ok(Uuid::nil()),
        _ => text.parse().map_err(|_| "give a UUID, random, time or clear".to_owned()),
    }
}

/// Makes a UUID of version 1 (RFC 9562, section 5.1). Its node is no network card's address, but random.
fn of_time(now: Timestamp) -> Uuid {
    let ticks = now.secs.cast_unsigned().wrapping_mul(10_000_000).wrapping_add(u64::from(now.nanos) / 100);
    let [.., high, low, first, a, b, c, d, e] = *Uuid::new_v4().as_bytes();
    // A random node has the bit that makes an address one of many cards.
    let node = [first | 1, a, b, c, d, e];
    Builder::from_gregorian_timestamp(ticks.wrapping_add(TICKS_TO_1970), u16::from_be_bytes([high, low]), &node)
        .into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_given_or_made_of_chance_or_time() {
        let given = "12345678-9abc-4def-8123-456789abcdef";
        assert_eq!(parse(given).unwrap().to_string(), given);
        assert_eq!(parse("clear"), Ok(Uuid::nil()));
        assert_eq!(parse("random").unwrap().get_version_num(), 4);
        assert_ne!(parse("time"), parse("time"));
        assert!(parse("12345").is_err() && parse("").is_err());
    }

    #[test]
    fn a_uuid_of_time_tells_the_time_and_no_address() {
        let uuid = of_time(Timestamp::new(1_772_368_200, 123_456_700));
        assert_eq!((uuid.get_version_num(), uuid.get_variant()), (1, uuid::Variant::RFC4122));
        assert_eq!(uuid.get_timestamp().map(|time| time.to_unix()), Some((1_772_368_200, 123_456_700)));
        assert_eq!(uuid.as_bytes()[10] & 1, 1);
    }
}
