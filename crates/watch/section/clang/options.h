// What ORBIT_SECTIONS says, in the environment of the compilation: words apart by spaces, GLOBs
// with `*`, `?` and `[...]`. README.md lists them.
#ifndef RMK_SECTIONS_OPTIONS_H
#define RMK_SECTIONS_OPTIONS_H

#include "names.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/GlobPattern.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

class Globs {
public:
    bool add(llvm::StringRef text)
    {
        auto glob = llvm::GlobPattern::create(text);
        if (!glob) {
            llvm::consumeError(glob.takeError());
            return false;
        }
        all.push_back(std::move(*glob));
        return true;
    }

    bool empty() const { return all.empty(); }

    bool match(llvm::StringRef text) const
    {
        for (const llvm::GlobPattern &glob : all)
            if (glob.match(text))
                return true;
        return false;
    }

private:
    std::vector<llvm::GlobPattern> all;
};

struct Options {
    enum class Loops { None, Coarse, All };

    Globs files, functions, skipped, waits, iterated;
    std::vector<std::pair<std::string, std::string>> locks;
    Loops loops = Loops::Coarse;
    bool marksLocks = true;
    /// Marks are calls of the library, not inline.
    bool marksCall = false;
    bool reports = false;
    /// What is wrong; empty: nothing.
    std::string error;

    static Options fromEnvironment()
    {
        Options options;
        // The patterns refer to the text, which lives as long as the process.
        const char *text = std::getenv("ORBIT_SECTIONS");
        llvm::SmallVector<llvm::StringRef, 8> words;
        llvm::StringRef(text ? text : "").split(words, ' ', -1, false);
        for (llvm::StringRef word : words)
            if (!options.take(word) && options.error.empty())
                options.error = "ORBIT_SECTIONS: \"" + word.str() +
                    "\" is none of files=, functions=, skip=, wait=, iterate= (with a glob), lock=ACQUIRE:RELEASE, "
                    "loops=coarse|all|none, locks=yes|no, marks=inline|call, report";
        return options;
    }

    bool isWait(llvm::StringRef name) const { return names::waits(name) || waits.match(name); }

    bool isConditionWait(llvm::StringRef name) const { return names::waitsForCondition(name) || waits.match(name); }

    /// The function that releases what this one acquires; empty if it acquires nothing.
    llvm::StringRef released(llvm::StringRef acquires) const
    {
        for (const auto &pair : locks)
            if (pair.first == acquires)
                return pair.second;
        return names::released(acquires);
    }

private:
    bool take(llvm::StringRef word)
    {
        auto parts = word.split('=');
        llvm::StringRef key = parts.first, value = parts.second;
        if (word == "report")
            return reports = true;
        if (value.empty())
            return false;
        if (key == "files")
            return files.add(value);
        if (key == "functions")
            return functions.add(value);
        if (key == "skip")
            return skipped.add(value);
        if (key == "wait")
            return waits.add(value);
        if (key == "iterate")
            return iterated.add(value);
        if (key == "lock") {
            auto names = value.split(':');
            locks.emplace_back(names.first.str(), names.second.str());
            return !names.first.empty() && !names.second.empty();
        }
        if (key == "locks") {
            marksLocks = value == "yes";
            return marksLocks || value == "no";
        }
        if (key == "marks") {
            marksCall = value == "call";
            return marksCall || value == "inline";
        }
        if (key != "loops")
            return false;
        loops = value == "all" ? Loops::All : value == "none" ? Loops::None : Loops::Coarse;
        return value == "all" || value == "none" || value == "coarse";
    }
};

#endif
