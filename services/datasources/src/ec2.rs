//! `/<version>/…`: EC2's metadata service, for cloud-init, the SDKs, afterburn, Ignition, facter and ohai.
//!
//! In comes the VM that asks; out go listings and leaves of one tree, the same in every version. What is listed is there,
//! and nothing else is: crawlers give the whole tree up for one name that is not. A directory answers with its slash and
//! without, a leaf too. No line break follows a value. Refused: what nobody knows (an address that DHCP gives) is left
//! out, because an empty one would be believed.

mod census;
mod session;
mod tree;

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use pve_imds_model::endpoint::{EC2_VERSIONS, Endpoint, parts};
use pve_imds_model::fault::Fault;
use pve_imds_model::request::Emulation;

use self::tree::Node;
use crate::reply::{Kind, Reply};
use crate::subject::Subject;

pub(crate) use census::{Census, describe};
pub(crate) use session::{issue, judge};

/// The answer to GET.
///
/// # Errors
/// Those of [`Subject::user_data`] for it; [`Subject::may_enter`]'s for what a boot begins with.
pub(crate) fn serve(endpoint: Endpoint, path: &str, subject: &Subject<'_>) -> Result<Reply, Fault> {
    let below: Vec<Cow<'_, str>> = below(path).collect();
    match endpoint {
        Endpoint::Ec2Index if parts(path).next().is_none() => Ok(listing(EC2_VERSIONS.join("\n"))),
        Endpoint::Ec2Index => {
            let user_data = if subject.has_user_data() { "\nuser-data" } else { "" };
            Ok(listing(format!("dynamic\nmeta-data{user_data}")))
        }
        // OpenStack's clients crawl this tree besides, which costs them a connection for each of its leaves.
        Endpoint::Ec2MetaData if below.is_empty() && subject.emulation == Emulation::Openstack => {
            Ok(listing(String::new()))
        }
        Endpoint::Ec2MetaData => {
            if below == INSTANCE_ID {
                subject.may_enter()?;
            }
            show(tree::meta_data(subject), &below)
        }
        Endpoint::Ec2Dynamic => show(tree::dynamic(subject), &below),
        Endpoint::Ec2UserData => match subject.user_data()? {
            none if none.is_empty() && !subject.has_user_data() => Err(Fault::not_found()),
            text => Ok(Reply::new(Kind::Opaque, text)),
        },
        _ => Err(Fault::not_found()),
    }
}

/// The name that cloud-init begins with, below `meta-data`.
const INSTANCE_ID: [&str; 1] = ["instance-id"];

/// Whether the path is that of [`INSTANCE_ID`].
pub(crate) fn is_instance_id(path: &str) -> bool {
    below(path).eq(INSTANCE_ID)
}

/// The names in a path, behind the version and the tree.
fn below(path: &str) -> impl Iterator<Item = Cow<'_, str>> {
    parts(path).skip(2).map(|part| percent_decode_str(part).decode_utf8_lossy())
}

fn show(tree: Node<'_>, below: &[Cow<'_, str>]) -> Result<Reply, Fault> {
    let shown = below.iter().try_fold(tree, |node, name| node.child(name)).ok_or_else(Fault::not_found)?;
    Ok(listing(shown.show()))
}

fn listing(text: String) -> Reply {
    Reply::new(Kind::Text, text.into())
}
