//! Errors and their causes, for people.

use std::error::Error;

/// An error and its causes on one line, each once: some errors already say what their cause says.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn each_cause_is_said_once() {
        let layers = |words: &[&'static str]| {
            words.iter().rev().fold(None, |cause, word| Some(Box::new(Layer(word, cause)))).unwrap()
        };
        for (words, said) in [
            (&["cannot start"][..], "cannot start"),
            (&["cannot start", "no lock", "busy"], "cannot start: no lock: busy"),
            (&["cannot start: no lock", "no lock", "busy"], "cannot start: no lock: busy"),
        ] {
            assert_eq!(chain(&*layers(words)), said);
        }
    }
}
