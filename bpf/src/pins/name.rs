//! What a file in the directory of pins is called. One spelling each: what is called otherwise is not ours.

use std::fmt;

use super::Program;

/// What a file name in the directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinName {
    Interface(u32, Program),
    Device(Program),
}

impl PinName {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "return" => return Some(Self::Device(Program::Return)),
            "funnel" => return Some(Self::Device(Program::Funnel)),
            _ => {}
        }
        let (ifindex, program) = name.split_once('-')?;
        let program = match program {
            "steer" => Program::Steer,
            "shield" => Program::Shield,
            _ => return None,
        };
        let parsed = Self::Interface(ifindex.parse().ok()?, program);
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for PinName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(ifindex, program) => write!(f, "{ifindex}-{program}"),
            Self::Device(program) => write!(f, "{program}"),
        }
    }
}

impl PinName {
    pub(super) fn of(program: Program, ifindex: u32) -> Self {
        match program {
            Program::Steer | Program::Shield => Self::Interface(ifindex, program),
            Program::Return | Program::Funnel => Self::Device(program),
        }
    }

    pub(super) const fn program(self) -> Program {
        match self {
            Self::Interface(_, program) | Self::Device(program) => program,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_name_has_one_spelling() {
        for (name, parsed) in [
            ("7-steer", Some(PinName::Interface(7, Program::Steer))),
            ("4294967295-shield", Some(PinName::Interface(u32::MAX, Program::Shield))),
            ("return", Some(PinName::Device(Program::Return))),
            ("funnel", Some(PinName::Device(Program::Funnel))),
            ("07-steer", None),
            ("+7-steer", None),
            ("7-return", None),
            ("7-steer.old", None),
            ("-steer", None),
            ("4294967296-steer", None),
            ("progs", None),
        ] {
            assert_eq!(PinName::parse(name), parsed, "{name}");
        }
    }
}
