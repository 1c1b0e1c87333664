#!/bin/sh
# Become systemd, PID 1 of a root of its own: boot.sh BASE CHECKS RESULT GPUS
#
# Started by scripts/systemd-root as the first process of new PID, mount, UTS, IPC, network and cgroup
# namespaces whose mounts are private. BASE is only read (an overlay takes what is written); of the
# machine's files nothing else but RESULT is in sight after pivot_root. No device of the machine is
# there, /proc/sys is read-only, the control groups are the part below our own, and the rights to set
# the clock, load modules, reboot or read the kernel's log are gone before systemd begins.
set -eu
base=$1 checks=$2 result=$3 gpus=$4
stage=$result.stage # a mount point; nothing of the machine lies below it
mkdir -p "$stage"

mount -t tmpfs -o size=512m,mode=0755 tmpfs "$stage"
mkdir "$stage/up" "$stage/work" "$stage/root"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$stage/up,workdir=$stage/work" "$stage/root"
cd "$stage/root"

# What systemd may empty is never the machine's.
for each in tmp run var dev; do mount -t tmpfs -o mode=0755,nosuid tmpfs "$each"; done
chmod 1777 tmp
mkdir -p var/lib var/log var/cache var/tmp var/spool run/lock dev/pts dev/shm out check
chmod 1777 var/tmp dev/shm
ln -s /run var/run

# A device is (type, major, minor); no driver stands behind 195, so that opening one that is
# permitted ends with ENXIO, and one that is not with EPERM.
while read -r name major minor; do
    mknod -m 0666 "dev/$name" c "$major" "$minor"
done <<END
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
fuse-like 10 229
nvidia0 195 0
nvidia1 195 1
nvidiactl 195 255
nvidia-uvm 511 0
foreign 241 0
END
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
# The fake NVML library lies where a driver's own files are: ProtectSystem=strict leaves /dev alone.
cp -r "$gpus" dev/gpus
chmod -R a+rwX dev/gpus

mount -t proc -o nosuid,nodev,noexec proc proc
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup
for each in sys sysrq-trigger irq bus fs; do
    [ -e "proc/$each" ] || continue
    mount --bind "proc/$each" "proc/$each"
    mount -o remount,ro,bind "proc/$each"
done
# As the driver would list itself.
sed 's/^Character devices:$/&\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm/' proc/devices >run/devices
mount --bind run/devices proc/devices

mkdir -p check/scripts
cp -r "$checks" check/scripts/systemd_root
mount --bind "$result" out
touch dev/console out/console
mount --bind out/console dev/console
mkdir -p old
hostname own-root
ip link set lo up
pivot_root . old
exec /usr/sbin/chroot . /bin/sh -c '
umount -l /old
# Shared with its own services alone, as a container manager leaves it: credentials need that.
mount --make-rshared /
exec env -i container=wattmesh-own-root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set -sys_time,-sys_module,-sys_boot,-sys_rawio,-syslog,-mac_admin,-mac_override,-audit_control,-audit_read,-wake_alarm,-block_suspend,-mknod \
    /lib/systemd/systemd --unit=check.target --log-target=console --show-status=no'
