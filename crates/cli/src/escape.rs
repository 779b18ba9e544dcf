//! Names and texts as a terminal may show them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns a name as messages show it: control characters and bytes that are not UTF-8 as escapes (`\n`, `\xff`,
/// `\u{9b}`), so that no name can move the cursor, fake a line, or end a message.
pub(crate) fn name(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|char| push_shown(&mut text, char));
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Returns a path as messages show it.
pub(crate) fn path(path: &Path) -> String {
    name(path.as_os_str().as_bytes())
}

/// Returns a message of several lines in which everything but line ends can be shown safely.
pub(crate) fn message(text: &str) -> String {
    text.split('\n').map(|line| name(line.as_bytes())).collect::<Vec<_>>().join("\n")
}

fn push_shown(text: &mut String, char: char) {
    match char {
        char if is_plain(char) => text.push(char),
        char if char.is_ascii() => text.extend(std::ascii::escape_default(char as u8).map(char::from)),
        char => text.extend(char.escape_unicode()),
    }
}

/// Returns false for characters that change how others are shown: control characters, line
/// separators, text direction.
pub(crate) fn is_plain(char: char) -> bool {
    !char.is_control() && !matches!(char, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a name as `ls -q` shows it: `?` for each byte or character that is not plain text.
pub(crate) fn hidden(bytes: &[u8]) -> Vec<u8> {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        shown.extend(chunk.valid().chars().map(|char| if is_plain(char) { char } else { '?' }));
        shown.extend(chunk.invalid().iter().map(|_| '?'));
    }
    shown.into_bytes()
}

/// Returns the bytes of a name in hexadecimal, if it is not UTF-8: JSON has no other place for such a name.
pub(crate) fn hex_unless_text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).is_err().then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_control_characters_are_escaped() {
        assert_eq!(name("gr\u{fc}n".as_bytes()), "grün");
        assert_eq!(name(b"a\x1bb\n"), "a\\x1bb\\n");
        assert_eq!(name(b"\xff"), "\\xff");
        assert_eq!(name("ü\u{9b}31m\u{202e}".as_bytes()), "ü\\u{9b}31m\\u{202e}");
        assert_eq!(message("one\x1b[2J\ntwo\r"), "one\\x1b[2J\ntwo\\r");
        assert_eq!(hidden("ü\u{9b}\n\t".as_bytes()), "ü???".as_bytes());
        assert_eq!(hidden(b"a\xff\xfe"), b"a??");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_in_hexadecimal() {
        assert_eq!(hex_unless_text(b"a\xff").as_deref(), Some("61ff"));
        assert_eq!(hex_unless_text("ü\n".as_bytes()), None);
    }
}
