//! The frame of a picture: margins, background, title.

/// Left and upper margin in the picture's units.
pub(super) const LEFT: u64 = 80;
pub(super) const TOP: u64 = 56;

/// Writes the beginning of a picture of this size: background, title, a line of text.
pub(super) fn header(width: u64, height: u64, title: &str, text: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"32\">{text}</text>\n",
        escaped(title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
