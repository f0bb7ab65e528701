//! What is asked for: a path in, one of a closed set of words out, because it labels metrics.
//!
//! Doubled and trailing slashes are real (shipping clients send them) and mean nothing. Old cloud-init joins NoCloud's seed
//! and file name without a slash, so `/nocloudmeta-data` is an alias. Refused as a name of anything: a version that no
//! client asks for, so that those which try the newest first go on to one they know.

use crate::words;

words! {
    /// A family of documents.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Endpoint {
        /// `/nocloud`, `/nocloud/`
        NocloudIndex => "nocloud_index",
        /// `/nocloud/meta-data`
        NocloudMetaData => "nocloud_meta_data",
        /// `/nocloud/user-data`
        NocloudUserData => "nocloud_user_data",
        /// `/nocloud/vendor-data`
        NocloudVendorData => "nocloud_vendor_data",
        /// `/nocloud/network-config`
        NocloudNetworkConfig => "nocloud_network_config",
        /// `/openstack` and `/openstack/<version>`
        OpenstackIndex => "openstack_index",
        /// `/openstack/<version>/meta_data.json`
        OpenstackMetaData => "openstack_meta_data",
        /// `/openstack/<version>/user_data`
        OpenstackUserData => "openstack_user_data",
        /// `/openstack/<version>/vendor_data.json` and `vendor_data2.json`
        OpenstackVendorData => "openstack_vendor_data",
        /// `/openstack/<version>/network_data.json`
        OpenstackNetworkData => "openstack_network_data",
        /// `/openstack/<version>/password`
        OpenstackPassword => "openstack_password",
        /// `/` and `/<version>`
        Ec2Index => "ec2_index",
        /// `/<version>/meta-data/…`
        Ec2MetaData => "ec2_meta_data",
        /// `/<version>/user-data`
        Ec2UserData => "ec2_user_data",
        /// `/<version>/dynamic/…`
        Ec2Dynamic => "ec2_dynamic",
        /// `/latest/api/token`
        Ec2Token => "ec2_token",
        /// `/pve-imds/jwtsvid`
        IdentityToken => "identity_token",
        /// `/.well-known/jwks.json`
        IdentityKeys => "identity_keys",
        /// `/pxe…`: errors must be spoken in iPXE's language.
        Pxe => "pxe",
        /// Everything else.
        Other => "other",
    }
}

/// Whose language an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// cloud-init's NoCloud seed.
    Nocloud,
    /// Nova's metadata.
    Openstack,
    /// EC2's metadata.
    Ec2,
    /// Identity tokens and what they are checked with.
    Identity,
    /// iPXE's scripts.
    Pxe,
}

/// Nova's versions of its metadata, and the one that means the newest.
pub const OPENSTACK_VERSIONS: &[&str] = &[
    "2012-08-10",
    "2013-04-04",
    "2013-10-17",
    "2015-10-15",
    "2016-06-30",
    "2016-10-06",
    "2017-02-22",
    "2018-08-27",
    "2020-10-14",
    "2025-04-04",
    "latest",
];

/// EC2's versions that clients are known to ask for or to look for in the list, and the one that means the newest.
pub const EC2_VERSIONS: &[&str] = &[
    "1.0",
    "2007-01-19",
    "2007-03-01",
    "2007-08-29",
    "2007-10-10",
    "2007-12-15",
    "2008-02-01",
    "2008-09-01",
    "2009-04-04",
    "2011-01-01",
    "2011-05-01",
    "2012-01-12",
    "2014-02-25",
    "2014-11-05",
    "2015-10-20",
    "2016-04-19",
    "2016-06-30",
    "2016-09-02",
    "2018-03-28",
    "2018-08-17",
    "2018-09-24",
    "2019-10-01",
    "2020-10-27",
    "2020-11-01",
    "2021-01-03",
    "2021-03-23",
    "2021-07-15",
    "2022-09-24",
    "2024-04-11",
    "latest",
];

/// The parts of a path between its slashes.
pub fn parts(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').filter(|part| !part.is_empty())
}

impl Endpoint {
    /// Whose it is; nobody's, if there is no such thing.
    #[must_use]
    pub fn family(self) -> Option<Family> {
        match self {
            Self::NocloudIndex
            | Self::NocloudMetaData
            | Self::NocloudUserData
            | Self::NocloudVendorData
            | Self::NocloudNetworkConfig => Some(Family::Nocloud),
            Self::OpenstackIndex
            | Self::OpenstackMetaData
            | Self::OpenstackUserData
            | Self::OpenstackVendorData
            | Self::OpenstackNetworkData
            | Self::OpenstackPassword => Some(Family::Openstack),
            Self::Ec2Index | Self::Ec2MetaData | Self::Ec2UserData | Self::Ec2Dynamic | Self::Ec2Token => {
                Some(Family::Ec2)
            }
            Self::IdentityToken | Self::IdentityKeys => Some(Family::Identity),
            Self::Pxe => Some(Family::Pxe),
            Self::Other => None,
        }
    }

    /// Reads a request path.
    #[must_use]
    pub fn classify(path: &str) -> Self {
        let mut parts = parts(path);
        match parts.next() {
            None => Self::Ec2Index,
            Some("nocloud") => match (parts.next(), parts.next()) {
                (None, _) => Self::NocloudIndex,
                (Some(file), None) => Self::nocloud_file(file),
                (Some(_), Some(_)) => Self::Other,
            },
            Some("openstack") => match (parts.next(), parts.next(), parts.next()) {
                (None, ..) => Self::OpenstackIndex,
                (Some(version), ..) if !OPENSTACK_VERSIONS.contains(&version) => Self::Other,
                (_, None, _) => Self::OpenstackIndex,
                (_, Some(file), None) => Self::openstack_file(file),
                (_, Some(_), Some(_)) => Self::Other,
            },
            Some("pve-imds") => match (parts.next(), parts.next()) {
                (Some("jwtsvid"), None) => Self::IdentityToken,
                _ => Self::Other,
            },
            Some(".well-known") => match (parts.next(), parts.next()) {
                (Some("jwks.json"), None) => Self::IdentityKeys,
                _ => Self::Other,
            },
            Some("pxe") => Self::Pxe,
            Some(version) if EC2_VERSIONS.contains(&version) => match (parts.next(), parts.next(), parts.next()) {
                (None, ..) => Self::Ec2Index,
                (Some("meta-data"), ..) => Self::Ec2MetaData,
                (Some("dynamic"), ..) => Self::Ec2Dynamic,
                (Some("user-data"), None, _) => Self::Ec2UserData,
                (Some("api"), Some("token"), None) if version == "latest" => Self::Ec2Token,
                (Some(_), ..) => Self::Other,
            },
            Some(joined) if parts.next().is_none() => {
                joined.strip_prefix("nocloud").map_or(Self::Other, Self::nocloud_file)
            }
            Some(_) => Self::Other,
        }
    }

    fn nocloud_file(name: &str) -> Self {
        match name {
            "meta-data" => Self::NocloudMetaData,
            "user-data" => Self::NocloudUserData,
            "vendor-data" => Self::NocloudVendorData,
            "network-config" => Self::NocloudNetworkConfig,
            _ => Self::Other,
        }
    }

    fn openstack_file(name: &str) -> Self {
        match name {
            "meta_data.json" => Self::OpenstackMetaData,
            "user_data" => Self::OpenstackUserData,
            "vendor_data.json" | "vendor_data2.json" => Self::OpenstackVendorData,
            "network_data.json" => Self::OpenstackNetworkData,
            "password" => Self::OpenstackPassword,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_a_closed_set() {
        use Endpoint as E;
        for (path, expected) in [
            ("/nocloud", E::NocloudIndex),
            ("/nocloud/", E::NocloudIndex),
            ("//nocloud//", E::NocloudIndex),
            ("/nocloud/meta-data", E::NocloudMetaData),
            ("/nocloud/meta-data/", E::NocloudMetaData),
            ("/nocloud/user-data", E::NocloudUserData),
            ("/nocloud/vendor-data", E::NocloudVendorData),
            ("/nocloud/network-config", E::NocloudNetworkConfig),
            ("/nocloudmeta-data", E::NocloudMetaData),
            ("/noclouduser-data", E::NocloudUserData),
            ("/nocloudmeta-data/x", E::Other),
            ("/nocloud/meta-data/x", E::Other),
            ("/nocloud/other", E::Other),
            ("/openstack", E::OpenstackIndex),
            ("/openstack/", E::OpenstackIndex),
            ("/openstack/latest", E::OpenstackIndex),
            ("/openstack/2018-08-27/", E::OpenstackIndex),
            ("/openstack/2018-08-28/", E::Other),
            ("/openstack/latest/meta_data.json", E::OpenstackMetaData),
            ("/openstack//2012-08-10//meta_data.json/", E::OpenstackMetaData),
            ("/openstack/latest/user_data", E::OpenstackUserData),
            ("/openstack/latest/vendor_data.json", E::OpenstackVendorData),
            ("/openstack/latest/vendor_data2.json", E::OpenstackVendorData),
            ("/openstack/latest/network_data.json", E::OpenstackNetworkData),
            ("/openstack/2013-04-04/password", E::OpenstackPassword),
            ("/openstack/latest/other", E::Other),
            ("/openstack/latest/password/x", E::Other),
            ("/openstack/content/0000", E::Other),
            ("/", E::Ec2Index),
            ("", E::Ec2Index),
            ("/latest", E::Ec2Index),
            ("/1.0/", E::Ec2Index),
            ("/latest/meta-data", E::Ec2MetaData),
            ("/2009-04-04/meta-data/instance-id", E::Ec2MetaData),
            ("/latest//meta-data/placement/region/", E::Ec2MetaData),
            ("/latest/user-data", E::Ec2UserData),
            ("/latest/user-data/", E::Ec2UserData),
            ("/latest/user-data/x", E::Other),
            ("/latest/dynamic", E::Ec2Dynamic),
            ("/latest/dynamic/instance-identity/document/", E::Ec2Dynamic),
            ("/latest/api/token", E::Ec2Token),
            ("/latest/api/token/", E::Ec2Token),
            ("/2009-04-04/api/token", E::Other),
            ("/latest/api", E::Other),
            ("/latest/api/token/x", E::Other),
            ("/1999-01-01/meta-data/", E::Other),
            ("/meta-data", E::Other),
            ("/pve-imds/jwtsvid", E::IdentityToken),
            ("/pve-imds//jwtsvid/", E::IdentityToken),
            ("/pve-imds", E::Other),
            ("/pve-imds/jwtsvid/x", E::Other),
            ("/latest/pve-imds/jwtsvid", E::Other),
            ("/.well-known/jwks.json", E::IdentityKeys),
            ("/.well-known", E::Other),
            ("/.well-known/openid-configuration", E::Other),
            ("/pxe", E::Pxe),
            ("/pxe/job", E::Pxe),
            ("/Nocloud", E::Other),
            // Nothing is decoded, so that one thing has one name.
            ("/nocloud/user%2Ddata", E::Other),
            ("/%6eocloud/user-data", E::Other),
            ("/nocloud%2Fuser-data", E::Other),
        ] {
            assert_eq!(E::classify(path), expected, "{path}");
        }
    }

    #[test]
    fn a_family_is_named_by_its_endpoints() {
        for endpoint in Endpoint::ALL {
            let family = match endpoint.word().split('_').next() {
                Some("nocloud") => Some(Family::Nocloud),
                Some("openstack") => Some(Family::Openstack),
                Some("ec2") => Some(Family::Ec2),
                Some("identity") => Some(Family::Identity),
                Some("pxe") => Some(Family::Pxe),
                _ => None,
            };
            assert_eq!(endpoint.family(), family, "{}", endpoint.word());
        }
    }

    #[test]
    fn lists_are_sorted_and_end_with_the_newest() {
        for versions in [OPENSTACK_VERSIONS, EC2_VERSIONS] {
            assert!(versions.is_sorted());
            assert_eq!(versions.last(), Some(&"latest"));
        }
    }
}
