// The kernel store: what was saved comes back intact or not at all, whatever happens to the disk around it.
#include "store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <locale>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "child_process.h"
#include "error.h"

namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using flexsn::sha256;
using flexsn::Store;
using flexsn::StoreInfo;
using flexsn::test::finish;
using flexsn::test::in_child;
using flexsn::test::start;
using Content = std::optional<std::string>;

constexpr uid_t nobody = 65534;
constexpr const char* variables[] = {"FLEXSN_CACHE", "FLEXSN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  chmod(path.c_str(), 0600);
}

int mode_of(const fs::path& path) {
  struct stat status;
  return lstat(path.c_str(), &status) == 0 ? static_cast<int>(status.st_mode & 07777) : -1;
}

void give_away(const fs::path& path) { ASSERT_EQ(lchown(path.c_str(), nobody, nobody), 0); }

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// A directory of its own for each test; the store's does not exist at first.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    std::string name = (fs::temp_directory_path() / "flexsn_store_XXXXXX").string();
    home = mkdtemp(name.data());
    directory = home / "caches" / "flexsn";
    for (const char* variable : variables)
      if (const char* value = std::getenv(variable)) environment_[variable] = value;
  }
  ~StoreTest() override {
    for (const char* variable : variables) unsetenv(variable);
    for (const auto& [variable, value] : environment_) setenv(variable.c_str(), value.c_str(), 1);
    fs::remove_all(home);
  }

  Store store() const { return Store(directory.string()); }

  std::set<std::string> files() const {
    std::set<std::string> names;
    if (fs::exists(directory))
      for (const auto& file : fs::directory_iterator(directory)) names.insert(file.path().filename());
    return names;
  }

  /// Saves an entry that is not there yet and returns its file.
  fs::path saved(const std::string& kind, const std::string& key, const std::string& content) const {
    const std::set<std::string> before = files();
    EXPECT_TRUE(store().save(kind, key, content));
    for (const std::string& name : files())
      if (!before.contains(name)) return directory / name;
    ADD_FAILURE() << "no new file";
    return {};
  }

  /// Runs `work` in a process without the powers of root, to whom the test's directory then belongs.
  int as_plain_user(const std::function<int()>& work) const {
    if (geteuid() != 0) return in_child(work);
    fs::permissions(home, fs::perms::all);
    give_away(home);
    for (const auto& file : fs::recursive_directory_iterator(home)) give_away(file.path());
    return in_child([&] { return setgid(nobody) == 0 && setuid(nobody) == 0 ? work() : 77; });
  }

  /// Runs `work` with a file system of 64 KiB in place of the store's directory; 77 where that cannot be had.
  int on_small_disk(const std::function<int()>& work) const {
    fs::create_directories(directory);
    return in_child([&] {
      const std::string user = std::to_string(geteuid()), group = std::to_string(getegid());
      if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
        std::ofstream("/proc/self/setgroups") << "deny";
        std::ofstream("/proc/self/uid_map") << user + " " + user + " 1";
        std::ofstream("/proc/self/gid_map") << group + " " + group + " 1";
      }
      if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
      if (mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0) return 77;
      return work();
    });
  }

  fs::path home, directory;

 private:
  std::map<std::string, std::string> environment_;
};

TEST(Sha256, PublishedAnswers) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  std::string all_lengths;
  for (std::size_t length = 0; length < 200; ++length) all_lengths += sha256(std::string(length, 'x'));
  EXPECT_EQ(sha256(all_lengths), "f61ffcc417e1f0e59eba2da7fa32fbe05b64e478b68c6bacf990455f00248b98");
}

// ---- what is saved ---------------------------------------------------------------------------------

TEST_F(StoreTest, GivesBackWhatWasSaved) {
  const std::string binary("\0\n\xff\r\n\0", 6);
  EXPECT_EQ(store().load("cpu", "key"), Content());
  EXPECT_FALSE(fs::exists(directory)) << "loading makes no directory";
  EXPECT_TRUE(store().save("cpu", "key", binary));
  EXPECT_EQ(store().load("cpu", "key"), Content(binary));
  EXPECT_EQ(store().load("cubin", "key"), Content()) << "the kind belongs to the key";
  EXPECT_TRUE(store().save("cubin", "key", ""));
  EXPECT_EQ(store().load("cubin", "key"), Content(""));
  EXPECT_TRUE(store().save("cpu", binary, "a key of any bytes"));
  EXPECT_EQ(store().load("cpu", binary), Content("a key of any bytes"));
  EXPECT_TRUE(store().save("cpu", "", "no key"));
  EXPECT_EQ(store().load("cpu", ""), Content("no key"));
  EXPECT_TRUE(store().save("cpu", "key", "another"));
  EXPECT_EQ(store().load("cpu", "key"), Content("another"));
  EXPECT_THROW(store().save("../cpu", "key", ""), flexsn::InternalError);
  EXPECT_THROW(store().load("", "key"), flexsn::InternalError);
}

TEST_F(StoreTest, HoldsNothingOpenToOthers) {
  const auto with_umask = [&](mode_t mask, const std::string& key) {
    return in_child([&] {
      umask(mask);
      return store().save("cpu", key, "content") ? 0 : 1;
    });
  };
  EXPECT_EQ(with_umask(0, "generous"), 0);
  EXPECT_EQ(mode_of(directory), 0700);
  EXPECT_EQ(mode_of(directory.parent_path()), 0755);
  EXPECT_EQ(with_umask(0666, "stingy"), 0);
  for (const std::string& name : files()) EXPECT_EQ(mode_of(directory / name), 0600);
  EXPECT_EQ(store().load("cpu", "stingy"), Content("content"));
}

TEST_F(StoreTest, NumbersDoNotFollowTheLocale) {
  struct Grouped : std::numpunct<char> {
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string key(12345, 'k');
  const std::locale before = std::locale::global(std::locale(std::locale(), new Grouped));
  EXPECT_TRUE(store().save("cpu", key, "content"));
  std::locale::global(before);
  EXPECT_EQ(store().load("cpu", key), Content("content"));
}

// ---- what is not intact is a miss, and the next save mends it ------------------------------------------

TEST_F(StoreTest, DamageIsAMiss) {
  const std::string content = "some machine code";
  const fs::path file = saved("cpu", "the key", content);
  const std::string intact = bytes_of(file);
  std::vector<std::string> damaged = {"", intact + '\0', intact + intact, std::string(intact.size(), '\0')};
  for (std::size_t i = 0; i < intact.size(); ++i) {
    damaged.push_back(intact.substr(0, i));
    damaged.push_back(intact);
    damaged.back()[i] = static_cast<char>(intact[i] ^ 1);
  }
  for (const std::string& bytes : damaged) {
    write_file(file, bytes);
    ASSERT_EQ(store().load("cpu", "the key"), Content()) << bytes;
  }
  EXPECT_TRUE(store().save("cpu", "the key", content));
  EXPECT_EQ(bytes_of(file), intact);
}

TEST_F(StoreTest, TheFileOfAnotherKeyIsAMiss) {
  const fs::path one = saved("cpu", "one", "code of one"), two = saved("cpu", "two", "code of two");
  const fs::path other_kind = saved("cubin", "one", "code for another machine");
  fs::copy_file(two, one, fs::copy_options::overwrite_existing);
  EXPECT_EQ(store().load("cpu", "one"), Content());
  fs::copy_file(other_kind, one, fs::copy_options::overwrite_existing);
  EXPECT_EQ(store().load("cpu", "one"), Content());
  EXPECT_TRUE(store().save("cpu", "one", "code of one"));
  EXPECT_EQ(store().load("cpu", "one"), Content("code of one"));
}

TEST_F(StoreTest, ALaterFormatIsAMiss) {
  const fs::path file = saved("cpu", "key", "content");
  std::string bytes = bytes_of(file);
  ASSERT_TRUE(bytes.starts_with("flexsn store 1\n"));
  bytes[13] = '2';
  write_file(file, bytes);
  EXPECT_EQ(store().load("cpu", "key"), Content());
}

TEST_F(StoreTest, AnOversizedEntryIsAMiss) {
  const std::string described = "cpu\n3\nkey\n", largest(Store::max_bytes - described.size(), 'x');
  const fs::path file = saved("cpu", "key", largest);
  EXPECT_TRUE(store().load("cpu", "key") == largest);
  const std::string body = described + largest + 'x';
  write_file(file, "flexsn store 1\n" + sha256(body) + "\n" + body);
  EXPECT_EQ(store().load("cpu", "key"), Content()) << "intact, but too large";
  EXPECT_FALSE(store().save("cpu", "key", largest + 'x'));
  EXPECT_EQ(fs::file_size(file), Store::max_bytes + 81) << "nothing was saved";
  EXPECT_TRUE(store().save("cpu", "key", "content"));
  EXPECT_EQ(store().load("cpu", "key"), Content("content"));
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(StoreTest, WhatIsNoFileOfOurOwnIsAMiss) {
  const fs::path file = saved("cpu", "key", "content"), elsewhere = home / "elsewhere";
  fs::rename(file, elsewhere);
  fs::create_symlink(elsewhere, file);
  EXPECT_EQ(store().load("cpu", "key"), Content());
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(in_child([&] { return store().load("cpu", "key").has_value() ? 1 : 0; }), 0)
      << "a pipe is not waited for";
  EXPECT_TRUE(store().save("cpu", "key", "content"));
  EXPECT_EQ(store().load("cpu", "key"), Content("content"));
  chmod(file.c_str(), 0622);
  EXPECT_EQ(store().load("cpu", "key"), Content()) << "others may have written it";
}

TEST_F(StoreTest, AnUnreadableEntryIsAMiss) {
  const fs::path file = saved("cpu", "key", "content");
  const int code = as_plain_user([&] {
    if (store().load("cpu", "key") != "content") return 1;
    chmod(file.c_str(), 0);
    if (store().load("cpu", "key")) return 2;
    return store().save("cpu", "key", "again") && store().load("cpu", "key") == "again" ? 0 : 3;
  });
  if (code == 77) GTEST_SKIP() << "no other user to become";
  EXPECT_EQ(code, 0);
}

// ---- which directory is used ---------------------------------------------------------------------------

TEST_F(StoreTest, AccessOfOthersIsWithdrawn) {
  const fs::path file = saved("cpu", "key", "content");
  chmod(directory.c_str(), 0777);
  EXPECT_EQ(store().load("cpu", "key"), Content("content"));
  EXPECT_EQ(mode_of(directory), 0700);

  fs::create_directory(directory / "triton");  // of the Python package
  chmod(directory.c_str(), 0755);
  EXPECT_EQ(store().load("cpu", "key"), Content("content"));
  EXPECT_EQ(mode_of(directory), 0700);

  write_file(directory / "letter.txt", "not a kernel");
  EXPECT_EQ(store().load("cpu", "key"), Content("content")) << "other files do no harm in a closed directory";
  chmod(directory.c_str(), 0750);
  EXPECT_EQ(store().load("cpu", "key"), Content());
  EXPECT_FALSE(store().save("cpu", "key", "content"));
  EXPECT_EQ(store().clear(), 0u);
  EXPECT_FALSE(store().info().usable);
  EXPECT_EQ(store().info().problem,
            directory.string() + " is open to other users and not a directory of kernels alone");
  EXPECT_EQ(mode_of(directory), 0750) << "a home directory must not be closed";
  EXPECT_TRUE(fs::exists(file));

  fs::remove(directory / "letter.txt");
  chmod(directory.c_str(), 01777);
  EXPECT_FALSE(store().info().usable) << "shared by intent";
  EXPECT_EQ(mode_of(directory), 01777);
}

TEST_F(StoreTest, ALinkIsNotFollowed) {
  const fs::path file = saved("cpu", "key", "content"), link = home / "link";
  fs::create_directory_symlink(directory, link);
  for (const char* end : {"", "/", "//", "/.", "/./"}) {
    const Store linked(link.string() + end);
    EXPECT_EQ(linked.load("cpu", "key"), Content()) << end;
    EXPECT_FALSE(linked.save("cpu", "other", "content")) << end;
    EXPECT_EQ(linked.clear(), 0u) << end;
    EXPECT_EQ(linked.info().problem, link.string() + " is not a directory (a symbolic link is not followed)");
  }
  EXPECT_EQ(files().size(), 1u);
  fs::create_directory_symlink(directory.parent_path(), home / "parent");
  EXPECT_EQ(Store((home / "parent" / "flexsn/").string()).load("cpu", "key"), Content("content"));
  EXPECT_FALSE(Store(file.string()).save("cpu", "key", "content"));
  EXPECT_FALSE(Store(file.string()).info().usable);
}

TEST_F(StoreTest, WhatBelongsToSomebodyElseIsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const fs::path file = saved("cpu", "key", "content");
  give_away(file);
  EXPECT_EQ(store().load("cpu", "key"), Content());
  EXPECT_TRUE(store().save("cpu", "key", "content"));
  EXPECT_EQ(store().load("cpu", "key"), Content("content"));
  give_away(directory);
  EXPECT_EQ(store().load("cpu", "key"), Content());
  EXPECT_FALSE(store().save("cpu", "other", "content"));
  EXPECT_EQ(store().clear(), 0u);
  EXPECT_TRUE(fs::exists(file));
  EXPECT_EQ(store().info().problem, directory.string() + " belongs to user 65534 and not to user 0");
}

TEST_F(StoreTest, TheEnvironmentChooses) {
  const auto chosen = [](const char* off, const char* flexsn, const char* xdg, const char* user_home) {
    setenv("FLEXSN_CACHE", off, 1), setenv("FLEXSN_CACHE_DIR", flexsn, 1);
    setenv("XDG_CACHE_HOME", xdg, 1), setenv("HOME", user_home, 1);
    return Store::from_environment().info();
  };
  const std::string at = home.string(), a = at + "/a", b = at + "/b", c = at + "/c";
  EXPECT_EQ(chosen("", a.c_str(), b.c_str(), c.c_str()).directory, a);
  EXPECT_EQ(chosen("1", (a + "//").c_str(), "", "").directory, a);
  EXPECT_EQ(chosen("", "", b.c_str(), c.c_str()).directory, b + "/flexsn");
  EXPECT_EQ(chosen("", "", "", c.c_str()).directory, c + "/.cache/flexsn");
  EXPECT_EQ(chosen("", "", "relative", c.c_str()).directory, c + "/.cache/flexsn");
  EXPECT_TRUE(chosen("", "", "", c.c_str()).usable);
  EXPECT_EQ(chosen("", "", "", c.c_str()).problem, "");

  EXPECT_FALSE(chosen("0", a.c_str(), b.c_str(), c.c_str()).usable);
  EXPECT_EQ(chosen("0", a.c_str(), b.c_str(), c.c_str()).problem, "FLEXSN_CACHE is 0");
  EXPECT_FALSE(Store::from_environment().save("cpu", "key", "content"));
  EXPECT_EQ(chosen("off", a.c_str(), b.c_str(), c.c_str()).problem,
            "FLEXSN_CACHE must be 0 or 1, found 'off'");
  EXPECT_FALSE(chosen("", "~/cache", b.c_str(), c.c_str()).usable);
  EXPECT_EQ(chosen("", "~/cache", b.c_str(), c.c_str()).problem, "'~/cache' is not an absolute path");
  EXPECT_FALSE(Store::from_environment().save("cpu", "key", "content"));
  EXPECT_FALSE(chosen("", "", "", "relative").usable);
  for (const char* variable : variables) unsetenv(variable);
  EXPECT_EQ(Store::from_environment().info().problem,
            "none of FLEXSN_CACHE_DIR, XDG_CACHE_HOME and HOME is an absolute path");
  EXPECT_FALSE(Store::from_environment().save("cpu", "key", "content"));
  EXPECT_EQ(Store::from_environment().clear(), 0u);
  EXPECT_TRUE(fs::is_empty(home));
  EXPECT_FALSE(Store("").info().usable);
  EXPECT_FALSE(Store("").save("cpu", "key", "content"));
}

/// What the process started by the test below does, in whatever environment it was given.
void use_the_standard_store() {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(&Store::standard(), &Store::standard());
    Store::standard().load("cpu", "key");
    Store::standard().save("cpu", "key", "content");
  }
}

TEST_F(StoreTest, WarnsOnceInAProcess) {
  if (std::getenv("FLEXSN_STORE_TEST_CHILD") != nullptr) return use_the_standard_store();
  const auto warnings = [&](const std::string& cache_directory, const std::string& cache) {
    const fs::path errors = home / "errors";
    const int code = in_child([&] {
      setenv("FLEXSN_STORE_TEST_CHILD", "1", 1);
      setenv("FLEXSN_CACHE_DIR", cache_directory.c_str(), 1), setenv("FLEXSN_CACHE", cache.c_str(), 1);
      const int out = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(out, 2);
      dup2(open("/dev/null", O_WRONLY), 1);
      execl("/proc/self/exe", "flexsn_tests", "--gtest_filter=StoreTest.WarnsOnceInAProcess", nullptr);
      return 98;
    });
    EXPECT_EQ(code, 0);
    return bytes_of(errors);
  };
  write_file(home / "file", "");
  const std::string file = (home / "file").string();
  const std::string remedy = "; set FLEXSN_CACHE_DIR to a directory of your own, or FLEXSN_CACHE to 0\n";
  EXPECT_EQ(warnings(file, ""), "flexsn: warning: compiled kernels are not kept on disk: " + file +
                                    " is not a directory (a symbolic link is not followed)" + remedy);
  EXPECT_EQ(
      warnings("here", ""),
      "flexsn: warning: compiled kernels are not kept on disk: 'here' is not an absolute path" + remedy);
  EXPECT_EQ(warnings(file, "0"), "") << "what was wished for is no warning";
  EXPECT_EQ(warnings(directory, ""), "");
  EXPECT_EQ(store().load("cpu", "key"), Content("content"));
}

// ---- disks that refuse -----------------------------------------------------------------------------------

TEST_F(StoreTest, AShortWriteLeavesTheOldEntry) {
  saved("cpu", "key", "old");
  for (const rlim_t limit : {0, 1, 40, 100, 5000}) {
    const int code = in_child([&] {
      const rlimit limits = {limit, limit};
      signal(SIGXFSZ, SIG_DFL);  // would end the process
      if (setrlimit(RLIMIT_FSIZE, &limits) != 0) return 1;
      if (store().save("cpu", "key", std::string(6000, 'x'))) return 2;
      sigset_t signals;
      sigemptyset(&signals);
      sigpending(&signals);
      if (sigismember(&signals, SIGXFSZ) != 0) return 3;
      pthread_sigmask(SIG_BLOCK, nullptr, &signals);
      return sigismember(&signals, SIGXFSZ) == 0 ? 0 : 4;
    });
    EXPECT_EQ(code, 0) << limit;
    EXPECT_EQ(files().size(), 1u) << limit;
    EXPECT_EQ(store().load("cpu", "key"), Content("old")) << limit;
  }
}

TEST_F(StoreTest, AFullDiskCostsTheCachingOnly) {
  const int code = on_small_disk([&] {
    if (!store().save("cpu", "key", "small")) return 1;
    if (store().save("cpu", "key", std::string(100000, 'x'))) return 2;
    if (files().size() != 1 || store().load("cpu", "key") != "small") return 3;
    return store().save("cpu", "other", "small") ? 0 : 4;
  });
  if (code == 77) GTEST_SKIP() << "no right to mount a small disk";
  EXPECT_EQ(code, 0);
}

TEST_F(StoreTest, AReadOnlyDiskIsStillRead) {
  const int code = on_small_disk([&] {
    if (!store().save("cpu", "key", "content")) return 1;
    if (mount(nullptr, directory.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return 77;
    if (store().load("cpu", "key") != "content" || store().save("cpu", "key", "new")) return 2;
    const StoreInfo info = store().info();
    if (!info.usable || info.entries != 1 || !mentions(info.problem, "Read-only file system")) return 3;
    const Store below((directory / "a" / "b").string());
    if (below.save("cpu", "key", "content") || below.load("cpu", "key")) return 4;
    return !below.info().usable && mentions(below.info().problem, "Read-only file system") ? 0 : 5;
  });
  if (code == 77) GTEST_SKIP() << "no right to mount a small disk";
  EXPECT_EQ(code, 0);
}

TEST_F(StoreTest, ADirectoryWithoutWritePermissionIsStillRead) {
  saved("cpu", "key", "content");
  chmod(directory.c_str(), 0500);
  const int code = as_plain_user([&] {
    if (store().load("cpu", "key") != "content" || store().save("cpu", "key", "new")) return 1;
    if (!store().info().usable || !mentions(store().info().problem, "Permission denied")) return 2;
    const Store below((directory / "a" / "b").string());
    if (below.save("cpu", "key", "content") || below.info().usable) return 3;
    chmod(directory.c_str(), 0);
    if (store().load("cpu", "key") || store().save("cpu", "key", "new") || store().info().usable) return 4;
    chmod(directory.c_str(), 0700);
    return files().size() == 1 && store().save("cpu", "key", "new") ? 0 : 5;
  });
  if (code == 77) GTEST_SKIP() << "no other user to become";
  EXPECT_EQ(code, 0);
}

// ---- counting and clearing -------------------------------------------------------------------------------

TEST_F(StoreTest, InfoCountsAndClearRemovesEntriesAlone) {
  EXPECT_EQ(store().clear(), 0u);
  const auto size = fs::file_size(saved("cpu", "a", "1")) + fs::file_size(saved("cpu", "b", "22"));
  const fs::path third = saved("cubin", "a", "333");
  const std::string digest = third.filename().string().substr(0, 64);
  const std::set<std::string> ours = files();
  std::set<std::string> others = {"letter.txt", ".hidden", digest, "A" + digest.substr(1) + ".cubin"};
  for (const char* near : {"1-.tmp", "-2.tmp", "1-2.tmp.c", "1-2x.tmp", ".tmp"})
    others.insert("flexsn-"s + near);
  for (const char* near : {".", ".Cubin", "0.cubin", ".cubin.c", "-cubin"}) others.insert(digest + near);
  for (const std::string& name : others) write_file(directory / name, "keep me");
  fs::create_directory(directory / (digest + ".directory"));
  others.insert(digest + ".directory");
  write_file(directory / "flexsn-1-2.tmp", "stale");

  const StoreInfo info = store().info();
  EXPECT_TRUE(info.usable);
  EXPECT_EQ(info.problem, "");
  EXPECT_EQ(info.directory, directory);
  EXPECT_EQ(info.entries, 3u);
  EXPECT_EQ(info.bytes, size + fs::file_size(third));
  ASSERT_EQ(info.kinds.size(), 2u);
  EXPECT_EQ(info.kinds.at("cpu").entries, 2u);
  EXPECT_EQ(info.kinds.at("cpu").bytes, size);
  EXPECT_EQ(info.kinds.at("cubin").entries, 1u);
  EXPECT_EQ(store().clear(), 4u);
  EXPECT_EQ(files(), others);
  EXPECT_EQ(store().info().entries, 0u);
  EXPECT_EQ(store().load("cpu", "a"), Content());
}

TEST_F(StoreTest, ClearRemovesWhatAKilledProcessLeft) {
  const std::string large(Store::max_bytes - 1000, 'x');
  bool left = false;
  // Killed as soon as its file appears, a process may still have put it in place; then another one is tried.
  for (int attempt = 0; attempt < 50 && !left; ++attempt) {
    store().clear();
    saved("cpu", "key", "content");
    const pid_t child = start([&] { return store().save("cpu", "large", large) ? 0 : 1; });
    siginfo_t ended = {};
    while (files().size() < 2 && ended.si_pid == 0) waitid(P_PID, child, &ended, WEXITED | WNOHANG | WNOWAIT);
    kill(child, SIGKILL);
    finish(child);
    left = files().size() == 2 && !store().load("cpu", "large");
  }
  ASSERT_TRUE(left);
  EXPECT_EQ(store().info().entries, 1u);
  EXPECT_EQ(store().clear(), 2u);
  EXPECT_TRUE(files().empty());
}

// ---- many at once
// ------------------------------------------------------------------------------------------

TEST_F(StoreTest, TwoHundredProcessesStartOnNothing) {
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 200; ++i) {
    children.push_back(start([&, i] {
      char byte;
      close(gate[1]);
      if (read(gate[0], &byte, 1) != 0) return 1;  // until the parent closes its end
      const std::string own = "own " + std::to_string(i), shared(30000, 's');
      const Content early = store().load("cpu", "shared");
      if (early && *early != shared) return 2;
      if (!store().save("cpu", "shared", shared) || store().load("cpu", "shared") != shared) return 3;
      if (!store().save("cpu", own, own) || store().load("cpu", own) != own) return 4;
      return store().info().usable ? 0 : 5;
    }));
  }
  close(gate[0]);
  close(gate[1]);
  for (const pid_t child : children) EXPECT_EQ(finish(child), 0);
  EXPECT_EQ(store().info().entries, 201u);
  EXPECT_EQ(files().size(), 201u);
}

TEST_F(StoreTest, ThreadsSeeWholeEntries) {
  std::atomic<int> wrong = 0, seen = 0;
  const auto work = [&](char letter) {
    for (int i = 0; i < 150; ++i) {
      store().save("cpu", "key", std::string(20000, letter));
      const Content content = store().load("cpu", "key");
      if (letter == 'a' && i % 10 == 9) store().clear();
      if (!content) continue;
      seen += 1;
      wrong += *content != std::string(20000, content->front());
    }
  };
  std::vector<std::thread> threads;
  for (const char letter : {'a', 'b', 'c', 'd'}) threads.emplace_back(work, letter);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(seen, 0);
  store().clear();
  EXPECT_TRUE(files().empty());
}

TEST_F(StoreTest, ForksBesideThreadsWork) {
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!done) store().save("cpu", "key", std::string(5000, 'x'));
    });
  for (int i = 0; i < 50; ++i) {
    const int code = in_child([&] {
      Store::standard();
      if (!store().save("cpu", "child", "content")) return 1;
      return store().load("cpu", "child") == "content" ? 0 : 2;
    });
    EXPECT_EQ(code, 0);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
