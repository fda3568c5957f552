//! Stop strings, matched on text across tokens.

/// Lets text through up to the first stop string, holding back what may be the beginning of one.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    hit: bool,
}

impl StopStrings {
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), hit: false }
    }

    pub fn hit(&self) -> bool {
        self.hit
    }

    /// Returns the text that is certain; nothing comes after a hit.
    pub fn push(&mut self, text: &str) -> String {
        if self.hit {
            return String::new();
        }
        self.held.push_str(text);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.hit = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let rest = self.held.split_off(self.held.len() - self.longest_beginning());
        std::mem::replace(&mut self.held, rest)
    }

    /// The text ends here, so nothing held back can become a stop string.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end that a stop string could begin with.
    fn longest_beginning(&self) -> usize {
        let bytes = self.held.as_bytes();
        let beginning = |stop: &String| {
            (1..stop.len().min(bytes.len() + 1)).rev().find(|n| bytes.ends_with(&stop.as_bytes()[..*n]))
        };
        self.stops.iter().filter_map(beginning).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::StopStrings;

    #[test]
    fn every_cut_finds_the_earliest_stop() {
        let text = "aab ENDE é漢 x";
        for (stops, expected, hit) in [
            (vec!["ENDE", "E"], "aab ", true),
            (vec!["漢"], "aab ENDE é", true),
            (vec!["aac", "x y"], text, false),
            (vec!["ab"], "a", true),
        ] {
            for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                let mut matcher = StopStrings::new(stops.iter().map(ToString::to_string).collect());
                let mut out = matcher.push(&text[..cut]) + &matcher.push(&text[cut..]);
                out += &matcher.flush();
                assert_eq!((out.as_str(), matcher.hit()), (expected, hit), "{stops:?} cut at {cut}");
            }
        }
    }
}
