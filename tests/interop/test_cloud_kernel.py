"""scripts/cloud-kernel unpacks Debian's cloud kernel from one package or from several. Needs no
root and no network: apt is a stand-in."""

import lzma
import os
import subprocess

import pytest

from prerequisite import REPOSITORY

META, RELEASE = "linux-image-cloud-amd64", "6.17.7+deb14-cloud-amd64"
IMAGE, MODULES, BINARY = f"linux-image-{RELEASE}", f"linux-modules-{RELEASE}", f"linux-binary-{RELEASE}"
KERNEL, MODULE = f"boot/vmlinuz-{RELEASE}", f"lib/modules/{RELEASE}/kernel/fou.ko"
IMAGE_DEPENDS = "  Depends: kmod\n  Depends: linux-base\n |Depends: initramfs-tools\n  Depends: <linux-initramfs-tool>\n    dracut\n"

# Each layout: what `apt-cache depends` prints of a package, and the files of the packages that are
# to be fetched.
TOGETHER = (
    {META: f"  Depends: {IMAGE}\n", IMAGE: IMAGE_DEPENDS + f"  Conflicts: {IMAGE}-unsigned\n"},
    {IMAGE: [KERNEL, MODULE]},
)
BY_METAPACKAGE = (
    {META: f"  Depends: linux-base\n  Depends: {MODULES}\n  Depends: {IMAGE}\n", IMAGE: IMAGE_DEPENDS, MODULES: "  Depends: kmod\n"},
    {IMAGE: [KERNEL], MODULES: [f"usr/{MODULE}"]},
)
BY_IMAGE = (
    {
        META: f" |Depends: {IMAGE}\n  Depends: {IMAGE}-unsigned\n  Recommends: {RELEASE}\n",
        IMAGE: f"  PreDepends: linux-base\n  Depends: {BINARY}\n  Depends: {MODULES}\n" + IMAGE_DEPENDS,
        BINARY: "",
        MODULES: f"  Depends: {IMAGE}\n  Suggests: linux-modules-9-cloud-amd64\n",
    },
    {IMAGE: [], BINARY: [f"usr/lib/modules/{RELEASE}/vmlinuz"], MODULES: [f"usr/{MODULE}.xz"]},
)

APT_CACHE = """#!/bin/sh
echo "$2"
cat "${0%/*}/$2.depends"
"""
APT_GET = """#!/bin/sh
while [ "$1" != download ]; do shift; done
shift
for package; do cp "${0%/*}/$package.deb" .; done
"""
PACKED = lzma.compress(b"module")


@pytest.fixture(params=[TOGETHER, BY_METAPACKAGE, BY_IMAGE], ids=["together", "by metapackage", "by image"])
def layout(request, tmp_path):
    """The stand-ins for apt know this layout; the packages that are to be fetched."""
    depends, packages = request.param
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    for name, script in (("apt-cache", APT_CACHE), ("apt-get", APT_GET)):
        (stand_ins / name).write_text(script)
        (stand_ins / name).chmod(0o755)
    for name, text in depends.items():
        (stand_ins / f"{name}.depends").write_text(text)
    for name, files in packages.items():
        build_package(tmp_path / name, files, stand_ins / f"{name}.deb")
    return packages


def build_package(tree, files, package):
    (tree / "DEBIAN").mkdir(parents=True)
    fields = {"Package": tree.name.replace("+", "."), "Version": "1", "Architecture": "all", "Maintainer": "nobody", "Description": "none"}
    (tree / "DEBIAN" / "control").write_text("".join(f"{field}: {value}\n" for field, value in fields.items()))
    for file in files:
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_bytes(PACKED if file.endswith(".xz") else b"module")
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, package], check=True, stdout=subprocess.DEVNULL)


def cloud_kernel(tmp_path, *words):
    environment = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}:/usr/sbin:/sbin", "CARGO_TARGET_DIR": str(tmp_path / "target")}
    script = REPOSITORY / "scripts" / "cloud-kernel"
    done = subprocess.run([script, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_cloud_kernel_names_image_and_modules_of_one_release(layout, tmp_path):
    assert sorted(cloud_kernel(tmp_path, "--packages")) == sorted(layout)


def test_cloud_kernel_unpacks_kernel_and_modules_of_one_release(layout, tmp_path):
    (place,) = cloud_kernel(tmp_path)
    unpacked = tmp_path / "target" / "cloud-kernel"
    assert place == str(unpacked)
    assert [path.name for path in (unpacked / "lib" / "modules").iterdir()] == [RELEASE]
    assert (unpacked / KERNEL).read_bytes() == b"module"
    assert (unpacked / MODULE).read_bytes() == b"module"
    assert (unpacked / "lib" / "modules" / RELEASE / "modules.dep").exists()
    (tmp_path / "bin" / "apt-get").unlink()
    assert cloud_kernel(tmp_path) == [place], "it is fetched once"
